# The torch-free part of the lora module (adapter_config.json, choice of linears, merging), which the executable
# contains.
set(LT_LORA_CONFIG_SOURCES
  adapter_config.cpp adapter_tensors.cpp lora_plan.cpp merge.cpp merged_weights.cpp merge_math.cpp open_model.cpp
  portable.cpp usage_section.cpp)
list(TRANSFORM LT_LORA_CONFIG_SOURCES PREPEND ${CMAKE_CURRENT_LIST_DIR}/)
if(NOT TARGET lt_lora_config)
  add_library(lt_lora_config OBJECT ${LT_LORA_CONFIG_SOURCES})
  lt_compile_together(lt_lora_config core)
  lt_keep_hot(lt_lora_config "${LT_COLD_OPTIONS}" ${CMAKE_CURRENT_LIST_DIR}/merge_math.cpp)
  target_include_directories(lt_lora_config PUBLIC ${PROJECT_SOURCE_DIR}/include PRIVATE ${CMAKE_CURRENT_LIST_DIR})
  target_link_libraries(lt_lora_config PRIVATE lt_flags lt_pcre2 nlohmann_json::nlohmann_json
                        PUBLIC lt_base lt_config lt_storage lt_tokenizer lt_data lt_model_config)
endif()
