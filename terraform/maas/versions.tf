terraform {
  required_version = ">= 1.6"

  required_providers {
    maas = {
      source  = "canonical/maas"
      version = ">= 2.4.0, < 3.0" # 2.4.0: the release whose schema the tests hold this module to
    }
  }
}
