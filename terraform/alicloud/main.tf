# Nodes: one instance for each. A node keeps the image, zone, kind and disk that it was made with until it is replaced: what is
# changed holds for new nodes only. Some of it ECS would change in place and with a loss: another image_id empties the disk.

locals {
  prefix = join("-", compact(["gpuprov", var.name, var.alicloud.site]))
  tags   = merge(var.tags, { gpuprov-cluster = var.name })

  kind = { for g, group in var.groups : g => coalesce(var.alicloud.groups[g].kind, group.capacity.kind) }

  nodes = merge([
    for g, group in var.groups : {
      for i in range(group.count) : "${g}-${i}" => { group = g } if !contains(var.alicloud.groups[g].without, "${g}-${i}")
    }
  ]...)
}

# A deployment set takes no tags: its description has gpuprov's.
resource "alicloud_ecs_deployment_set" "cluster" {
  for_each            = { for g, group in var.groups : g => group if group.placement == "cluster" }
  deployment_set_name = "${local.prefix}-${each.key}"
  description         = join(" ", [for key, value in local.tags : "${key}=${value}" if startswith(key, "gpuprov-")])
  strategy            = "LowLatency"
}

# ECS removes no key pair that an instance has: this one keeps its first key. Who may log in is in user_data.
resource "alicloud_ecs_key_pair" "access" {
  key_pair_name     = "${local.prefix}-${substr(sha256(var.ssh_public_key), 0, 8)}"
  public_key        = var.ssh_public_key
  resource_group_id = var.alicloud.resource_group_id
  tags              = local.tags
  lifecycle {
    ignore_changes = [key_pair_name, public_key]
  }
}

resource "alicloud_instance" "node" {
  for_each = local.nodes

  instance_name        = "${local.prefix}-${each.key}"
  instance_type        = var.groups[each.value.group].machine
  image_id             = var.alicloud.groups[each.value.group].image_id
  instance_charge_type = "PostPaid"
  key_name             = alicloud_ecs_key_pair.access.key_pair_name
  user_data            = var.user_data == "" ? null : base64encode(var.user_data)
  resource_group_id    = var.alicloud.resource_group_id
  deletion_protection  = var.alicloud.protect

  vswitch_id        = try(local.vswitches[local.zone[each.value.group]], null)
  security_groups   = concat([alicloud_security_group.nodes.id], var.alicloud.security_groups)
  deployment_set_id = try(alicloud_ecs_deployment_set.cluster[each.value.group].id, null)

  # The system disk alone: local disks show up by themselves and are the role scratch's.
  system_disk_category          = "cloud_essd"
  system_disk_performance_level = var.alicloud.root.performance_level
  system_disk_size              = var.groups[each.value.group].root_gb
  system_disk_encrypted         = true
  system_disk_kms_key_id        = var.alicloud.root.kms_key_id

  # Without a price limit a spot node costs at most what pay-as-you-go does.
  spot_strategy = (
    local.kind[each.value.group] != "spot" ? "NoSpot" : var.alicloud.spot_price_limit == null ? "SpotAsPriceGo" : "SpotWithPriceLimit"
  )
  spot_price_limit           = local.kind[each.value.group] == "spot" ? var.alicloud.spot_price_limit : null
  spot_interruption_behavior = local.kind[each.value.group] == "spot" ? "Terminate" : null

  private_pool_options_match_criteria = local.kind[each.value.group] == "reservation" ? "Target" : null
  private_pool_options_id             = local.kind[each.value.group] == "reservation" ? var.groups[each.value.group].capacity.id : null

  # Metadata answers to tokens only where the image's cloud-init asks with one, and one hop far: to the node, not to
  # containers behind a bridge.
  # https://www.alibabacloud.com/help/en/ecs/user-guide/view-instance-metadata
  http_endpoint               = "enabled"
  http_tokens                 = var.alicloud.groups[each.value.group].metadata_tokens
  http_put_response_hop_limit = 1

  tags = merge(local.tags, {
    gpuprov-group = each.value.group
    gpuprov-node  = each.key
  })
  volume_tags = merge(local.tags, {
    gpuprov-group = each.value.group
    gpuprov-node  = each.key
  })

  # Bare metal takes its time.
  timeouts {
    create = var.alicloud.create_timeout
    delete = "40m"
  }

  lifecycle {
    ignore_changes = [
      instance_type, image_id, key_name, user_data, vswitch_id, network_interface_traffic_mode, deployment_set_id,
      system_disk_performance_level, system_disk_size, system_disk_kms_key_id, spot_strategy, spot_price_limit,
      spot_interruption_behavior, private_pool_options_match_criteria, private_pool_options_id,
    ]
  }

  # A node needs its way out at first boot.
  depends_on = [alicloud_snat_entry.nodes, alicloud_security_group_rule.ssh]
}

# What nodes may do in the account: nothing, unless a role is named or buckets are.
resource "alicloud_ecs_ram_role_attachment" "node" {
  for_each      = var.alicloud.ram_role == null && !local.make_role ? {} : alicloud_instance.node
  instance_id   = each.value.id
  ram_role_name = local.make_role ? alicloud_ram_role.nodes[0].role_name : var.alicloud.ram_role
}
