# File systems that all nodes share. A CFS file system that is made here goes with the cluster.

locals {
  cfs_zone = var.tencent.cfs == null ? "" : coalesce(var.tencent.cfs.zone, var.tencent.zones[0])
}

# pgroupbasic is the account's own permission group: whoever is in the VPC may mount it.
# https://cloud.tencent.com/document/product/582/10951
resource "tencentcloud_cfs_file_system" "shared" {
  count             = var.tencent.cfs == null ? 0 : 1
  name              = "${local.prefix}-cfs"
  availability_zone = local.cfs_zone
  access_group_id   = "pgroupbasic"
  protocol          = "NFS"
  storage_type      = var.tencent.cfs.type
  vpc_id            = local.vpc_id
  subnet_id         = local.subnets[local.cfs_zone]
  tags              = local.tags
  lifecycle {
    precondition {
      # https://cloud.tencent.com/document/product/582/38112: Turbo (TB, TP) wants a CCN and a client of its own
      condition     = contains(["SD", "HP"], var.tencent.cfs.type)
      error_message = "cfs.type is SD (general) or HP (performance)."
    }
  }
}

locals {
  # What nodes mount: type, source, path and options as fstab has them.
  # https://cloud.tencent.com/document/product/582/11523: NFS 4.0, noresvport
  nfs = "vers=4.0,noresvport,hard,timeo=600,retrans=2,_netdev"
  mounts = concat(
    [for fs in tencentcloud_cfs_file_system.shared : {
      type = "nfs4", source = "${fs.mount_ip}:/", path = var.tencent.cfs.path, options = local.nfs
    }],
    [for mount in var.tencent.nfs : {
      type = "nfs4", source = mount.source, path = mount.path, options = mount.write ? local.nfs : "ro,${local.nfs}"
    }],
  )
}
