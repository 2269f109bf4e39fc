# Nodes: one instance for each. A node keeps the image, zone, kind, disk and user data that it was made with until it is
# replaced: the provider would install its system anew for a changed image, key or user data.

locals {
  # A name has 60 letters at most (CreateSubnet, CreateVpc): 40 leave room for a zone.
  full   = join("-", compact(["gpuprov", var.name, var.tencent.site]))
  prefix = length(local.full) <= 40 ? local.full : "${substr(local.full, 0, 31)}-${substr(sha256(local.full), 0, 8)}"
  tags   = merge(var.tags, { gpuprov-cluster = var.name })

  kind = { for g, group in var.groups : g => coalesce(var.tencent.groups[g].kind, group.capacity.kind) }

  nodes = merge([
    for g, group in var.groups : {
      for i in range(group.count) : "${g}-${i}" => { group = g } if !contains(var.tencent.groups[g].without, "${g}-${i}")
    }
  ]...)

  charge = {
    traffic   = "TRAFFIC_POSTPAID_BY_HOUR"
    bandwidth = "BANDWIDTH_POSTPAID_BY_HOUR"
    package   = "BANDWIDTH_PACKAGE"
  }[var.tencent.bandwidth.charge]

  public = var.tencent.internet == "public"
}

# An account has a public key once in a project (InvalidPublicKey.Duplicate), and names of 25 letters, digits and underscores. A key pair
# that machines have cannot be removed: this one keeps its first key. Who may log in is in user_data.
resource "tencentcloud_key_pair" "access" {
  count      = var.tencent.key_pair == null ? 1 : 0
  key_name   = "gpuprov_${substr(sha256("${local.prefix} ${var.ssh_public_key}"), 0, 16)}"
  public_key = join(" ", slice(split(" ", trimspace(var.ssh_public_key)), 0, 2)) # the provider keeps it without its comment
  project_id = coalesce(var.tencent.project, 0)
  tags       = local.tags
  lifecycle {
    ignore_changes = [key_name, public_key, project_id]
  }
}

# A placement group of Tencent Cloud keeps machines apart, so that one broken host, switch or rack takes one of them.
# https://cloud.tencent.com/document/product/213/15486
resource "tencentcloud_placement_group" "spread" {
  for_each = var.tencent.spread == null ? {} : var.groups
  name     = length("${local.prefix}-${each.key}") <= 60 ? "${local.prefix}-${each.key}" : "${local.prefix}-${substr(sha256(each.key), 0, 16)}"
  type     = { host = "HOST", switch = "SW", rack = "RACK" }[var.tencent.spread]
  tags     = merge(local.tags, { gpuprov-group = each.key })
}

resource "tencentcloud_instance" "node" {
  for_each = local.nodes

  instance_name     = "${local.prefix}-${each.key}"
  instance_type     = var.groups[each.value.group].machine
  image_id          = var.tencent.groups[each.value.group].image_id
  availability_zone = local.zone[each.value.group]
  project_id        = var.tencent.project

  # Spot without a price takes the discount that holds now (RunInstances, InstanceMarketOptions).
  instance_charge_type = local.kind[each.value.group] == "spot" ? "SPOTPAID" : "POSTPAID_BY_HOUR"
  spot_instance_type   = local.kind[each.value.group] == "spot" && var.tencent.spot_max_price != null ? "ONE-TIME" : null
  spot_max_price       = local.kind[each.value.group] == "spot" ? var.tencent.spot_max_price : null

  vpc_id                  = local.vpc_id
  subnet_id               = local.subnets[local.zone[each.value.group]]
  orderly_security_groups = concat([tencentcloud_security_group.nodes.id], var.tencent.security_groups)
  placement_group_id      = var.tencent.spread == null ? null : tencentcloud_placement_group.spread[each.value.group].id

  allocate_public_ip         = local.public
  internet_charge_type       = local.public ? local.charge : null
  internet_max_bandwidth_out = local.public ? var.tencent.bandwidth.mbps : 0
  bandwidth_package_id       = local.public ? var.tencent.bandwidth.package : null

  # The system disk alone: these types have no local disks.
  system_disk_type       = var.tencent.root.type
  system_disk_size       = var.groups[each.value.group].root_gb
  system_disk_encrypt    = var.tencent.root.encrypt
  system_disk_kms_key_id = var.tencent.root.kms_key

  # Without a key Tencent Cloud makes up a password and sends it to the account's owner.
  key_ids       = [local.key]
  user_data_raw = var.user_data == "" ? null : var.user_data
  cam_role_name = local.make_role ? tencentcloud_cam_role.nodes[0].name : var.tencent.role

  disable_monitor_service    = !var.tencent.agents.monitor
  disable_security_service   = !var.tencent.agents.security
  disable_automation_service = !var.tencent.agents.automation
  disable_api_termination    = var.tencent.protect

  tags = merge(local.tags, { gpuprov-group = each.value.group, gpuprov-node = each.key })

  timeouts {
    create = var.tencent.create_timeout
  }

  lifecycle {
    ignore_changes = [
      image_id, instance_type, availability_zone, subnet_id, instance_charge_type, spot_instance_type, spot_max_price,
      placement_group_id, allocate_public_ip, internet_charge_type, internet_max_bandwidth_out, bandwidth_package_id,
      system_disk_type, system_disk_size, system_disk_encrypt, system_disk_kms_key_id, key_ids, user_data_raw, project_id,
      disable_monitor_service, disable_security_service, disable_automation_service, cam_role_name,
    ]
    precondition {
      condition     = contains(["on-demand", "spot"], local.kind[each.value.group])
      error_message = "Group ${each.value.group}: kind is on-demand or spot."
    }
    precondition {
      condition     = var.groups[each.value.group].capacity.id == null
      error_message = "Group ${each.value.group}: there is no capacity.id on Tencent Cloud."
    }
    precondition {
      condition     = contains(keys(local.subnets), local.zone[each.value.group])
      error_message = "Group ${each.value.group}: no subnet of the VPC is in ${local.zone[each.value.group]}: vpc.subnets has one for each zone."
    }
    precondition {
      # https://cloud.tencent.com/document/product/362/5145: 20 to 1024 GiB for system disks, and 50 for most images
      condition     = var.groups[each.value.group].root_gb >= 20 && var.groups[each.value.group].root_gb <= 2048
      error_message = "Group ${each.value.group}: a system disk has 20 to 2048 GiB."
    }
  }

  # A node needs its way out at first boot.
  depends_on = [
    tencentcloud_route_table_entry.nat,
    tencentcloud_security_group_rule_set.nodes,
    tencentcloud_cam_role_policy_attachment.buckets,
  ]
}

locals {
  key = var.tencent.key_pair != null ? var.tencent.key_pair : tencentcloud_key_pair.access[0].id
}
