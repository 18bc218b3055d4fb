# What the executable needs of the model module (config.json, names and shapes of weights, names of linears, RoPE,
# init-model): no torch.
set(LT_MODEL_CONFIG_SOURCES
  activation_plan.cpp adapter_spec.cpp blocks/attention_shape.cpp blocks/mlp_shape.cpp config_reader.cpp expected_weights.cpp family_gemma3.cpp family_granite.cpp family_llama.cpp family_mistral.cpp family_qwen2.cpp
  family_qwen3.cpp init_model.cpp layer_shape.cpp layer_types.cpp known_shapes.cpp model_config.cpp registry.cpp rope_config.cpp rope_frequencies.cpp)
list(TRANSFORM LT_MODEL_CONFIG_SOURCES PREPEND ${CMAKE_CURRENT_LIST_DIR}/)
if(NOT TARGET lt_model_config)
  add_library(lt_model_config OBJECT ${LT_MODEL_CONFIG_SOURCES})
  lt_use_unity(lt_model_config)
  target_include_directories(lt_model_config PUBLIC ${PROJECT_SOURCE_DIR}/include PRIVATE ${CMAKE_CURRENT_LIST_DIR})
  target_link_libraries(lt_model_config PRIVATE lt_flags nlohmann_json::nlohmann_json PUBLIC lt_base lt_storage)
endif()
