# A VPC of our own, unless one is named. vSwitches lie in its network by the letter of their zone, so that a zone more or less
# moves no other.

locals {
  own_vpc = var.alicloud.vpc.id == null
  letters = { for i, letter in split("", "abcdefghijklmnop") : letter => i }

  zone      = { for g, group in var.groups : g => coalesce(var.alicloud.groups[g].zone, group.zone, var.alicloud.zones[0]) }
  zones     = distinct(concat(var.alicloud.zones, [for g in sort(keys(local.zone)) : local.zone[g]]))
  slot      = { for zone in local.vswitch_zones : zone => try(local.letters[substr(zone, -1, 1)], 16) }
  vpc_id    = local.own_vpc ? alicloud_vpc.own[0].id : var.alicloud.vpc.id
  vswitches = local.own_vpc ? { for zone, vswitch in alicloud_vswitch.nodes : zone => vswitch.id } : var.alicloud.vpc.vswitches

  nat = local.own_vpc && var.alicloud.internet == "nat"
  # The vSwitch of the NAT gateway stays where its zone is not among ours any more.
  vswitch_zones = distinct(concat(local.zones, terraform_data.nat_zone[*].input))
  elastic       = var.alicloud.internet == "public" ? toset(keys(local.nodes)) : toset([])
}

resource "alicloud_vpc" "own" {
  count             = local.own_vpc ? 1 : 0
  vpc_name          = local.prefix
  cidr_block        = var.alicloud.vpc.cidr
  resource_group_id = var.alicloud.resource_group_id
  tags              = local.tags
}

# The zone that was the first one when the NAT gateway was made: it stands there for good.
resource "terraform_data" "nat_zone" {
  count = local.nat ? 1 : 0
  input = local.zones[0]
  lifecycle {
    ignore_changes = [input]
  }
}

resource "alicloud_vswitch" "nodes" {
  for_each     = local.own_vpc ? toset(local.vswitch_zones) : toset([])
  vpc_id       = alicloud_vpc.own[0].id
  zone_id      = each.key
  vswitch_name = "${local.prefix}-${each.key}"
  cidr_block   = cidrsubnet(var.alicloud.vpc.cidr, 4, local.slot[each.key])
  tags         = local.tags
  lifecycle {
    precondition {
      condition     = local.slot[each.key] < 16 && length([for slot in values(local.slot) : slot if slot == local.slot[each.key]]) == 1
      error_message = "Zone ${each.key}: a VPC of our own has room for zones a to p of a region; name a VPC and its vSwitches for others."
    }
  }
}

# One gateway for all zones: its route is in the VPC's own table. An enhanced one stands in a vSwitch, and stays in its first one.
# https://www.alibabacloud.com/help/en/nat-gateway/product-overview/what-is-an-internet-nat-gateway
resource "alicloud_nat_gateway" "own" {
  count            = local.nat ? 1 : 0
  vpc_id           = alicloud_vpc.own[0].id
  vswitch_id       = alicloud_vswitch.nodes[terraform_data.nat_zone[0].input].id
  nat_gateway_name = local.prefix
  nat_type         = "Enhanced"
  payment_type     = "PayAsYouGo"
  tags             = local.tags
  lifecycle {
    ignore_changes = [vswitch_id]
  }
}

resource "alicloud_eip_address" "nat" {
  count                = local.nat ? 1 : 0
  address_name         = "${local.prefix}-nat"
  bandwidth            = tostring(var.alicloud.bandwidth)
  internet_charge_type = "PayByTraffic"
  payment_type         = "PayAsYouGo"
  resource_group_id    = var.alicloud.resource_group_id
  tags                 = local.tags
}

resource "alicloud_eip_association" "nat" {
  count         = local.nat ? 1 : 0
  allocation_id = alicloud_eip_address.nat[0].id
  instance_id   = alicloud_nat_gateway.own[0].id
  instance_type = "Nat"
}

resource "alicloud_snat_entry" "nodes" {
  for_each          = local.nat ? alicloud_vswitch.nodes : {}
  snat_table_id     = alicloud_nat_gateway.own[0].snat_table_ids
  snat_entry_name   = "${local.prefix}-${each.key}"
  source_vswitch_id = each.value.id
  snat_ip           = alicloud_eip_address.nat[0].ip_address
  depends_on        = [alicloud_eip_association.nat]
}

resource "alicloud_eip_address" "node" {
  for_each             = local.elastic
  address_name         = "${local.prefix}-${each.key}"
  bandwidth            = tostring(var.alicloud.bandwidth)
  internet_charge_type = "PayByTraffic"
  payment_type         = "PayAsYouGo"
  resource_group_id    = var.alicloud.resource_group_id
  tags                 = merge(local.tags, { gpuprov-node = each.key })
}

resource "alicloud_eip_association" "node" {
  for_each      = local.elastic
  allocation_id = alicloud_eip_address.node[each.key].id
  instance_id   = alicloud_instance.node[each.key].id
  instance_type = "EcsInstance"
}
