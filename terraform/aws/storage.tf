# File systems, only when asked for, and gone with the cluster. Their interfaces are in the nodes' own security group,
# whose members reach each other on every port.

resource "aws_fsx_lustre_file_system" "scratch" {
  count                           = var.aws.fsx == null ? 0 : 1
  storage_capacity                = var.aws.fsx.capacity_gib
  deployment_type                 = var.aws.fsx.deployment
  per_unit_storage_throughput     = startswith(var.aws.fsx.deployment, "PERSISTENT") ? var.aws.fsx.throughput : null
  data_compression_type           = "LZ4"
  automatic_backup_retention_days = startswith(var.aws.fsx.deployment, "PERSISTENT") ? 0 : null
  kms_key_id                      = var.aws.fsx.kms_key_id
  subnet_ids                      = [local.subnets[coalesce(var.aws.fsx.zone, local.zones[0])]]
  security_group_ids              = [aws_security_group.nodes.id]
  tags                            = merge(local.tags, { Name = "${local.prefix}-fsx" })
  lifecycle {
    precondition {
      # https://docs.aws.amazon.com/fsx/latest/LustreGuide/managing-storage-capacity.html
      condition     = var.aws.fsx.capacity_gib == 1200 || (var.aws.fsx.capacity_gib > 0 && var.aws.fsx.capacity_gib % 2400 == 0)
      error_message = "fsx.capacity_gib is 1200, or 2400 and its multiples."
    }
    precondition {
      # https://docs.aws.amazon.com/fsx/latest/LustreGuide/performance.html
      condition     = var.aws.fsx.deployment != "PERSISTENT_2" || contains([125, 250, 500, 1000], var.aws.fsx.throughput)
      error_message = "fsx.throughput of PERSISTENT_2 is 125, 250, 500 or 1000 MB/s per TiB."
    }
    precondition {
      condition     = var.aws.fsx.deployment != "PERSISTENT_1" || contains([50, 100, 200], var.aws.fsx.throughput)
      error_message = "fsx.throughput of PERSISTENT_1 is 50, 100 or 200 MB/s per TiB."
    }
  }
}

resource "aws_efs_file_system" "shared" {
  count           = var.aws.efs == null ? 0 : 1
  encrypted       = true
  kms_key_id      = var.aws.efs.kms_key_id
  throughput_mode = var.aws.efs.throughput
  tags            = merge(local.tags, { Name = "${local.prefix}-efs" })
}

resource "aws_efs_mount_target" "shared" {
  for_each        = var.aws.efs == null ? toset([]) : toset(local.zones)
  file_system_id  = aws_efs_file_system.shared[0].id
  subnet_id       = local.subnets[each.key]
  security_groups = [aws_security_group.nodes.id]
}

locals {
  # What nodes mount: type, source, path and options as fstab has them; for S3 the options are ro or rw.
  mounts = concat(
    [for fs in aws_fsx_lustre_file_system.scratch : {
      type = "lustre", source = "${fs.dns_name}@tcp:/${fs.mount_name}", path = var.aws.fsx.path, options = "noatime,flock,_netdev"
    }],
    # https://docs.aws.amazon.com/efs/latest/ug/mounting-fs-nfs-mount-settings.html
    [for fs in aws_efs_file_system.shared : {
      type    = "nfs4", source = "${fs.dns_name}:/", path = var.aws.efs.path,
      options = "nfsvers=4.1,rsize=1048576,wsize=1048576,hard,timeo=600,retrans=2,noresvport,_netdev"
    }],
    [for mount in var.aws.s3 : {
      type = "s3", source = "${mount.bucket}/${mount.prefix}", path = mount.path, options = mount.write ? "rw" : "ro"
    }],
  )
}
