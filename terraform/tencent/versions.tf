terraform {
  required_version = ">= 1.6"

  required_providers {
    tencentcloud = {
      source  = "tencentcloudstack/tencentcloud"
      version = ">= 1.83.25, < 2.0" # 1.83.25: the release whose schema the tests hold this module to
    }
  }
}
