# A file system, only when asked for, and gone with the cluster. The VPC's default permission group lets every machine of the VPC
# mount it. https://www.alibabacloud.com/help/en/nas/user-guide/manage-permission-groups

locals {
  nas_zone = var.alicloud.nas == null ? "" : coalesce(var.alicloud.nas.zone, local.zones[0])

  # What nodes mount: type, source, path and options as fstab has them.
  # https://www.alibabacloud.com/help/en/nas/user-guide/mount-an-nfs-file-system-on-a-linux-ecs-instance
  mounts = [
    for target in alicloud_nas_mount_target.shared : {
      type    = "nfs4", source = "${target.mount_target_domain}:/", path = var.alicloud.nas.path,
      options = "vers=4,minorversion=0,rsize=1048576,wsize=1048576,hard,timeo=600,retrans=2,noresvport,_netdev"
    }
  ]
}

resource "alicloud_nas_file_system" "shared" {
  count             = var.alicloud.nas == null ? 0 : 1
  protocol_type     = "NFS"
  file_system_type  = "standard"
  storage_type      = var.alicloud.nas.storage_type
  zone_id           = local.nas_zone
  encrypt_type      = 1
  description       = local.prefix
  resource_group_id = var.alicloud.resource_group_id
  tags              = local.tags
}

resource "alicloud_nas_mount_target" "shared" {
  count             = var.alicloud.nas == null ? 0 : 1
  file_system_id    = alicloud_nas_file_system.shared[0].id
  access_group_name = "DEFAULT_VPC_GROUP_NAME"
  network_type      = "Vpc"
  vpc_id            = local.vpc_id
  vswitch_id        = local.vswitches[local.nas_zone]
}
