# The part of the model module that the executable needs (config.json, names and shapes of weights, names of linears,
# RoPE, init-model): no torch.
set(LT_MODEL_CONFIG_SOURCES
  activation_plan.cpp layer_shape.cpp
  families/config_reader.cpp families/families.cpp families/model_config.cpp families/rope_config.cpp
  weights/expected_weights.cpp weights/init_model.cpp
  weights/stored_linear.cpp)
list(TRANSFORM LT_MODEL_CONFIG_SOURCES PREPEND ${CMAKE_CURRENT_LIST_DIR}/)
if(NOT TARGET lt_model_config)
  add_library(lt_model_config OBJECT ${LT_MODEL_CONFIG_SOURCES})
  lt_compile_together(lt_model_config core)
  lt_keep_hot(lt_model_config "${LT_COLD_OPTIONS}" ${CMAKE_CURRENT_LIST_DIR}/weights/init_model.cpp)
  target_include_directories(lt_model_config PUBLIC ${PROJECT_SOURCE_DIR}/include PRIVATE ${CMAKE_CURRENT_LIST_DIR})
  target_link_libraries(lt_model_config PRIVATE lt_flags nlohmann_json::nlohmann_json PUBLIC lt_base lt_storage)
endif()
