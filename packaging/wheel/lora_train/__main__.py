from lora_train import main

main()
