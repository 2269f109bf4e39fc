# A file share, only when asked for, and gone with the cluster. NFS has no passwords: whoever is in the nodes' subnet may mount it, and
# nobody else reaches the account. Traffic stays in Azure's network and is not encrypted there (NFS by itself has no encryption), so
# that "secure transfer" has to be off; the data is encrypted at rest.
# https://learn.microsoft.com/azure/storage/files/files-nfs-protocol#security-and-networking

resource "azurerm_storage_account" "files" {
  count                           = var.azure.files == null ? 0 : 1
  name                            = "gpuprov${substr(sha256("${local.resource_group}/${local.full}"), 0, 16)}" # one of its name in all of Azure
  resource_group_name             = local.resource_group
  location                        = var.azure.location
  account_kind                    = "FileStorage"
  account_tier                    = "Premium"
  account_replication_type        = var.azure.files.replication
  https_traffic_only_enabled      = false
  min_tls_version                 = "TLS1_2"
  shared_access_key_enabled       = false
  allow_nested_items_to_be_public = false
  tags                            = local.tags

  # A subnet of yours has to have the service endpoint Microsoft.Storage.
  network_rules {
    default_action             = "Deny"
    bypass                     = ["None"]
    virtual_network_subnet_ids = [local.subnet_id]
  }
}

resource "azurerm_storage_share" "files" {
  count              = var.azure.files == null ? 0 : 1
  name               = "files"
  storage_account_id = azurerm_storage_account.files[0].id
  enabled_protocol   = "NFS"
  quota              = var.azure.files.size_gib
}

locals {
  # What nodes mount: type, source, path and options as fstab has them.
  # https://learn.microsoft.com/azure/storage/files/storage-files-how-to-mount-nfs-shares, …/nfs-performance (nconnect)
  mounts = [
    for share in azurerm_storage_share.files : {
      type    = "nfs4", path = var.azure.files.path,
      source  = "${azurerm_storage_account.files[0].primary_file_host}:/${azurerm_storage_account.files[0].name}/${share.name}",
      options = "vers=4,minorversion=1,sec=sys,nconnect=4,hard,timeo=600,retrans=2,noresvport,_netdev"
    }
  ]
}
