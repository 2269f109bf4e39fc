# A VPC of our own, unless one is named. Subnets for nodes lie in the first seven eighths of its network, by the letter of
# their zone, so that a zone more or less moves no other; subnets for NAT gateways in the last.

locals {
  own_vpc = var.aws.vpc.id == null
  letters = { a = 0, b = 1, c = 2, d = 3, e = 4, f = 5, g = 6 }

  default_zone = try(var.aws.zones[0], data.aws_availability_zones.here[0].names[0], "")
  zone = {
    for g, group in var.groups : g => coalesce(var.aws.groups[g].zone, group.zone, local.default_zone)
  }
  zones     = distinct(concat(var.aws.zones, [for g in sort(keys(local.zone)) : local.zone[g]]))
  slot      = { for zone in local.zones : zone => try(local.letters[substr(zone, -1, 1)], 7) }
  nat_zones = !local.own_vpc || var.aws.internet != "nat" ? [] : var.aws.nat_per_zone ? local.zones : slice(local.zones, 0, min(1, length(local.zones)))

  vpc_id = local.own_vpc ? aws_vpc.own[0].id : var.aws.vpc.id
  found  = { for subnet in data.aws_subnet.given : subnet.availability_zone => subnet.id... }
  subnets = local.own_vpc ? { for zone, subnet in aws_subnet.nodes : zone => subnet.id } : {
    for zone, ids in local.found : zone => sort(ids)[0]
  }

  # Nodes with several interfaces can't be given a public address at launch.
  elastic = var.aws.internet == "public" ? toset([for name, node in local.nodes : name if length(local.interfaces[node.group]) > 1]) : toset([])
}

data "aws_region" "here" {}

data "aws_availability_zones" "here" {
  count = length(var.aws.zones) == 0 && anytrue([for g, group in var.groups : group.zone == "" && var.aws.groups[g].zone == null]) ? 1 : 0
  state = "available"
  filter {
    name   = "opt-in-status"
    values = ["opt-in-not-required"]
  }
}

data "aws_subnets" "tagged" {
  count = local.own_vpc || length(var.aws.vpc.subnet_tags) == 0 ? 0 : 1
  tags  = var.aws.vpc.subnet_tags
  filter {
    name   = "vpc-id"
    values = [var.aws.vpc.id]
  }
}

data "aws_subnet" "given" {
  for_each = local.own_vpc ? toset([]) : toset(concat(var.aws.vpc.subnet_ids, try(data.aws_subnets.tagged[0].ids, [])))
  id       = each.key
  lifecycle {
    postcondition {
      condition     = self.vpc_id == var.aws.vpc.id
      error_message = "Subnet ${self.id} is in ${self.vpc_id}, not in ${var.aws.vpc.id}."
    }
  }
}

resource "aws_vpc" "own" {
  count                = local.own_vpc ? 1 : 0
  cidr_block           = var.aws.vpc.cidr
  enable_dns_support   = true
  enable_dns_hostnames = true
  tags                 = merge(local.tags, { Name = local.prefix })
}

# The group that a VPC comes with: emptied, so that nothing is opened by forgetting to name another.
resource "aws_default_security_group" "own" {
  count  = local.own_vpc ? 1 : 0
  vpc_id = aws_vpc.own[0].id
  tags   = merge(local.tags, { Name = "${local.prefix}-unused" })
}

resource "aws_subnet" "nodes" {
  for_each          = local.own_vpc ? toset(local.zones) : toset([])
  vpc_id            = aws_vpc.own[0].id
  availability_zone = each.key
  cidr_block        = cidrsubnet(var.aws.vpc.cidr, 3, local.slot[each.key])
  tags              = merge(local.tags, { Name = "${local.prefix}-${each.key}" })
  lifecycle {
    precondition {
      condition     = local.slot[each.key] < 7 && length([for slot in values(local.slot) : slot if slot == local.slot[each.key]]) == 1
      error_message = "Zone ${each.key}: a VPC of our own has room for zones a to g of a region; name a VPC and its subnets for local zones."
    }
  }
}

resource "aws_internet_gateway" "own" {
  count  = local.own_vpc && var.aws.internet != "none" ? 1 : 0
  vpc_id = aws_vpc.own[0].id
  tags   = merge(local.tags, { Name = local.prefix })
}

resource "aws_subnet" "nat" {
  for_each          = toset(local.nat_zones)
  vpc_id            = aws_vpc.own[0].id
  availability_zone = each.key
  cidr_block        = cidrsubnet(cidrsubnet(var.aws.vpc.cidr, 3, 7), 4, local.slot[each.key])
  tags              = merge(local.tags, { Name = "${local.prefix}-nat-${each.key}" })
}

resource "aws_eip" "nat" {
  for_each   = toset(local.nat_zones)
  domain     = "vpc"
  tags       = merge(local.tags, { Name = "${local.prefix}-nat-${each.key}" })
  depends_on = [aws_internet_gateway.own]
}

resource "aws_nat_gateway" "own" {
  for_each      = toset(local.nat_zones)
  subnet_id     = aws_subnet.nat[each.key].id
  allocation_id = aws_eip.nat[each.key].id
  tags          = merge(local.tags, { Name = "${local.prefix}-${each.key}" })
  depends_on    = [aws_route_table_association.nat, aws_route.nat]
}

resource "aws_route_table" "nat" {
  count  = length(local.nat_zones) > 0 ? 1 : 0
  vpc_id = aws_vpc.own[0].id
  tags   = merge(local.tags, { Name = "${local.prefix}-nat" })
}

resource "aws_route" "nat" {
  count                  = length(local.nat_zones) > 0 ? 1 : 0
  route_table_id         = aws_route_table.nat[0].id
  destination_cidr_block = "0.0.0.0/0"
  gateway_id             = aws_internet_gateway.own[0].id
}

resource "aws_route_table_association" "nat" {
  for_each       = toset(local.nat_zones)
  subnet_id      = aws_subnet.nat[each.key].id
  route_table_id = aws_route_table.nat[0].id
}

resource "aws_route_table" "nodes" {
  for_each = aws_subnet.nodes
  vpc_id   = aws_vpc.own[0].id
  tags     = merge(local.tags, { Name = "${local.prefix}-${each.key}" })
}

resource "aws_route_table_association" "nodes" {
  for_each       = aws_subnet.nodes
  subnet_id      = each.value.id
  route_table_id = aws_route_table.nodes[each.key].id
}

resource "aws_route" "internet" {
  for_each               = local.own_vpc && var.aws.internet != "none" ? toset(local.zones) : toset([])
  route_table_id         = aws_route_table.nodes[each.key].id
  destination_cidr_block = "0.0.0.0/0"
  gateway_id             = var.aws.internet == "public" ? aws_internet_gateway.own[0].id : null
  nat_gateway_id         = var.aws.internet == "nat" ? try(aws_nat_gateway.own[each.key], aws_nat_gateway.own[local.zones[0]]).id : null
}

# Data sets and checkpoints go to S3 beside the NAT gateway: a gateway endpoint costs nothing.
resource "aws_vpc_endpoint" "s3" {
  count           = local.own_vpc ? 1 : 0
  vpc_id          = aws_vpc.own[0].id
  service_name    = "com.amazonaws.${data.aws_region.here.name}.s3"
  route_table_ids = [for table in aws_route_table.nodes : table.id]
  tags            = merge(local.tags, { Name = "${local.prefix}-s3" })
}

# Session Manager without a way to the internet.
# https://docs.aws.amazon.com/systems-manager/latest/userguide/setup-create-vpc.html
resource "aws_vpc_endpoint" "ssm" {
  for_each            = local.own_vpc && var.aws.internet == "none" && var.aws.access.ssm ? toset(["ssm", "ssmmessages"]) : toset([])
  vpc_id              = aws_vpc.own[0].id
  service_name        = "com.amazonaws.${data.aws_region.here.name}.${each.key}"
  vpc_endpoint_type   = "Interface"
  private_dns_enabled = true
  subnet_ids          = [for subnet in aws_subnet.nodes : subnet.id]
  security_group_ids  = [aws_security_group.nodes.id]
  tags                = merge(local.tags, { Name = "${local.prefix}-${each.key}" })
}

resource "aws_eip" "node" {
  for_each   = local.elastic
  domain     = "vpc"
  tags       = merge(local.tags, { Name = "${local.prefix}-${each.key}", gpuprov-node = each.key })
  depends_on = [aws_internet_gateway.own]
}

# By interface: EC2 refuses the instance's id where it has several.
resource "aws_eip_association" "node" {
  for_each             = local.elastic
  allocation_id        = aws_eip.node[each.key].id
  network_interface_id = aws_instance.node[each.key].primary_network_interface_id
}
