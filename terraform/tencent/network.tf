# A VPC of our own, unless one is named. The subnet of a zone is the sixteenth of the VPC's network that has the zone's
# number, so that a zone more or less moves no other.

locals {
  own_vpc = var.tencent.vpc.id == null

  zone = {
    for g, group in var.groups : g => coalesce(var.tencent.groups[g].zone, group.zone, var.tencent.zones[0])
  }
  zones  = distinct(concat(var.tencent.zones, [for g in sort(keys(local.zone)) : local.zone[g]]))
  number = { for zone in local.zones : zone => try(tonumber(regex("[0-9]+$", zone)), 99) }

  nat = local.own_vpc && var.tencent.internet == "nat"

  vpc_id  = local.own_vpc ? tencentcloud_vpc.own[0].id : var.tencent.vpc.id
  subnets = local.own_vpc ? { for zone, subnet in tencentcloud_subnet.nodes : zone => subnet.id } : var.tencent.vpc.subnets
}

resource "tencentcloud_vpc" "own" {
  count        = local.own_vpc ? 1 : 0
  name         = local.prefix
  cidr_block   = var.tencent.vpc.cidr
  is_multicast = false
  tags         = local.tags
}

resource "tencentcloud_subnet" "nodes" {
  for_each          = local.own_vpc ? toset(local.zones) : toset([])
  vpc_id            = tencentcloud_vpc.own[0].id
  name              = "${local.prefix}-${each.key}"
  availability_zone = each.key
  cidr_block        = cidrsubnet(var.tencent.vpc.cidr, 4, local.number[each.key])
  is_multicast      = false
  tags              = local.tags
  lifecycle {
    precondition {
      condition     = local.number[each.key] < 16 && length([for n in values(local.number) : n if n == local.number[each.key]]) == 1
      error_message = "Zone ${each.key}: a VPC of our own has room for the zones 1 to 15 of one region; name a VPC and its subnets for others."
    }
  }
}

# Machines that were made without a public address get none later: without the gateway they have no way out.
resource "terraform_data" "internet" {
  input = var.tencent.internet
  lifecycle {
    ignore_changes = [input]
    postcondition {
      condition     = !(self.input == "nat" && local.own_vpc && !local.nat)
      error_message = "internet: nat cannot become ${var.tencent.internet} while machines stand: they would lose their way out. Take internet: nat back, or `gpuprov down` first."
    }
  }
}

resource "tencentcloud_eip" "nat" {
  count                      = local.nat ? 1 : 0
  name                       = "${local.prefix}-nat"
  internet_charge_type       = local.charge
  internet_max_bandwidth_out = var.tencent.bandwidth.mbps
  bandwidth_package_id       = var.tencent.bandwidth.package
  tags                       = local.tags
}

resource "tencentcloud_nat_gateway" "own" {
  count            = local.nat ? 1 : 0
  vpc_id           = tencentcloud_vpc.own[0].id
  name             = local.prefix
  assigned_eip_set = [tencentcloud_eip.nat[0].public_ip]
  tags             = local.tags
}

# Subnets have the VPC's default route table. A node with a public address goes out by it, NAT gateway or not.
resource "tencentcloud_route_table_entry" "nat" {
  count                  = local.nat ? 1 : 0
  route_table_id         = tencentcloud_vpc.own[0].default_route_table_id
  destination_cidr_block = "0.0.0.0/0"
  next_type              = "NAT"
  next_hub               = tencentcloud_nat_gateway.own[0].id
  description            = "Out by the NAT gateway"
}
