terraform {
  required_version = ">= 1.6"

  required_providers {
    azurerm = {
      source  = "hashicorp/azurerm"
      version = ">= 4.75, < 5.0" # 4.75 has features.persist_id_on_create_before_polling_for_completion
    }
  }
}
