# Nodes: one launch template for each group, one instance for each node. A node keeps the image, zone and kind that it was
# made with until it is replaced: what a changed template says holds for new nodes only.

locals {
  prefix = join("-", compact(["gpuprov", var.name, var.aws.site]))
  tags   = merge(var.tags, { gpuprov-cluster = var.name })

  kind = { for g, group in var.groups : g => coalesce(var.aws.groups[g].kind, group.capacity.kind) }

  nodes = merge([
    for g, group in var.groups : {
      for i in range(group.count) : "${g}-${i}" => { group = g } if !contains(var.aws.groups[g].without, "${g}-${i}")
    }
  ]...)

  # Interfaces of a machine. One EFA for each network card, the first with an IP address of its own (`efa`), the others
  # without (`efa-only`); device index 0 on card 0, 1 on all others. Where card 0 takes no EFA (p6-b300) it has a plain interface,
  # and the others use device index 0.
  # https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-acc-inst-types.html, github.com/aws/aws-parallelcluster/issues/7143
  cards = { for g, group in var.aws.groups : g => coalesce(group.network_cards, local.described[g].maximum_network_cards) }
  efas  = { for g, group in var.aws.groups : g => coalesce(group.efa_interfaces, local.most_efas[g]) }
  interfaces = {
    for g, group in var.aws.groups : g => group.interfaces != null ? group.interfaces : concat(
      [{ card = 0, device = 0, type = local.efas[g] > 0 && local.efas[g] == local.cards[g] ? "efa" : "interface" }],
      [for i in range(1, local.efas[g] > 0 ? local.cards[g] : 1) : { card = i, device = local.efas[g] == local.cards[g] ? 1 : 0, type = "efa-only" }],
    )
  }

  # What is reserved stands where it was reserved: in the reservation's own placement group, or in none. A capacity block is
  # close together by itself. github.com/aws/aws-parallelcluster issues 4365, 6311 and 7252;
  # https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/capacity-blocks-how.html
  placement_group = { for g, group in var.groups : g => (
    var.aws.groups[g].placement_group != null ? var.aws.groups[g].placement_group :
    group.placement != "cluster" || contains(["reservation", "block"], local.kind[g]) ? null :
    aws_placement_group.cluster["${g}/${local.zone[g]}"].name
  ) }

  most_efas = { for g, group in var.groups : g => coalesce(local.described[g].efa_maximum_interfaces, 0) }
  described = { for g, group in var.groups : g => data.aws_ec2_instance_type.machine[group.machine] }
  image     = { for g, group in var.aws.groups : g => data.aws_ami.image[group.image_id] }
}

data "aws_ec2_instance_type" "machine" {
  for_each      = toset([for group in var.groups : group.machine])
  instance_type = each.key
}

# For the name of its root device and its architecture.
data "aws_ami" "image" {
  for_each           = toset([for group in var.aws.groups : group.image_id])
  include_deprecated = true
  filter {
    name   = "image-id"
    values = [each.key]
  }
}

# A placement group holds nodes of one zone, so every zone has its own. They cost nothing.
resource "aws_placement_group" "cluster" {
  for_each = merge([
    for g, group in var.groups : { for zone in local.zones : "${g}/${zone}" => zone } if group.placement == "cluster"
  ]...)
  name     = "${local.prefix}-${replace(each.key, "/", "-")}"
  strategy = "cluster"
  tags     = merge(local.tags, { gpuprov-group = split("/", each.key)[0] })

  # What was made keeps its name where cluster.yaml gets a second site later.
  lifecycle {
    ignore_changes = [name]
  }
}

resource "aws_key_pair" "access" {
  key_name   = "${local.prefix}-${substr(sha256(var.ssh_public_key), 0, 8)}"
  public_key = var.ssh_public_key
  tags       = local.tags
}

resource "aws_launch_template" "group" {
  for_each = var.groups

  name                   = "${local.prefix}-${each.key}"
  update_default_version = true
  image_id               = var.aws.groups[each.key].image_id
  instance_type          = each.value.machine
  key_name               = aws_key_pair.access.key_name
  ebs_optimized          = true
  tags                   = merge(local.tags, { gpuprov-group = each.key })

  # A response that may hop once ends at the node: a container behind a bridge can't ask for the node's credentials.
  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = var.aws.metadata_hop_limit
    http_protocol_ipv6          = "disabled"
    instance_metadata_tags      = "disabled"
  }

  monitoring {
    enabled = var.aws.monitoring
  }

  dynamic "iam_instance_profile" {
    for_each = local.make_profile || var.aws.instance_profile != null ? [1] : []
    content {
      name = local.profile
    }
  }

  # The root volume alone: local NVMe disks show up by themselves and are the role scratch's.
  block_device_mappings {
    device_name = local.image[each.key].root_device_name
    ebs {
      volume_type           = "gp3"
      volume_size           = each.value.root_gb
      iops                  = var.aws.root.iops
      throughput            = var.aws.root.throughput
      encrypted             = "true"
      kms_key_id            = var.aws.root.kms_key_id
      delete_on_termination = "true"
    }
  }

  dynamic "network_interfaces" {
    for_each = local.interfaces[each.key]
    content {
      network_card_index    = network_interfaces.value.card
      device_index          = network_interfaces.value.device
      interface_type        = network_interfaces.value.type == "interface" ? null : network_interfaces.value.type
      subnet_id             = local.subnets[local.zone[each.key]]
      security_groups       = concat([aws_security_group.nodes.id], var.aws.security_groups)
      delete_on_termination = "true"
      # EC2 refuses it beside several interfaces; such nodes have an elastic address (network.tf).
      associate_public_ip_address = length(local.interfaces[each.key]) == 1 ? tostring(var.aws.internet == "public") : null
    }
  }

  dynamic "placement" {
    for_each = local.placement_group[each.key] == null ? [] : [local.placement_group[each.key]]
    content {
      group_name = placement.value
    }
  }

  dynamic "instance_market_options" {
    for_each = local.kind[each.key] == "spot" ? ["spot"] : local.kind[each.key] == "block" ? ["capacity-block"] : []
    content {
      market_type = instance_market_options.value
      dynamic "spot_options" {
        for_each = instance_market_options.value == "spot" ? [1] : []
        content {
          spot_instance_type             = "one-time"
          instance_interruption_behavior = "terminate"
          max_price                      = var.aws.spot_max_price
        }
      }
    }
  }

  # On-demand takes a matching open reservation where there is one (EC2's default); a named one is the only one taken.
  dynamic "capacity_reservation_specification" {
    for_each = contains(["reservation", "block"], local.kind[each.key]) ? [each.value.capacity.id] : []
    content {
      capacity_reservation_preference = capacity_reservation_specification.value == null ? "open" : null
      dynamic "capacity_reservation_target" {
        for_each = capacity_reservation_specification.value == null ? [] : [capacity_reservation_specification.value]
        content {
          capacity_reservation_id                 = startswith(capacity_reservation_target.value, "cr-") ? capacity_reservation_target.value : null
          capacity_reservation_resource_group_arn = startswith(capacity_reservation_target.value, "arn:") ? capacity_reservation_target.value : null
        }
      }
    }
  }

  dynamic "tag_specifications" {
    for_each = concat(["volume", "network-interface"], local.kind[each.key] == "spot" ? ["spot-instances-request"] : [])
    content {
      resource_type = tag_specifications.value
      tags          = merge(local.tags, { Name = "${local.prefix}-${each.key}", gpuprov-group = each.key })
    }
  }

  lifecycle {
    precondition {
      condition     = contains(["on-demand", "spot", "reservation", "block"], local.kind[each.key])
      error_message = "Group ${each.key}: kind is on-demand, spot, reservation or block."
    }
    precondition {
      condition     = !contains(["on-demand", "spot"], local.kind[each.key]) || var.aws.groups[each.key].kind != null || each.value.capacity.id == null
      error_message = "Group ${each.key}: only a reservation or a block has an id."
    }
    precondition {
      condition     = local.kind[each.key] != "block" || can(regex("^cr-[0-9a-f]+$", each.value.capacity.id))
      error_message = "Group ${each.key}: a capacity block is named by its reservation, cr-…. https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/capacity-blocks-launch.html"
    }
    precondition {
      condition     = local.kind[each.key] != "reservation" || each.value.capacity.id == null || can(regex("^(cr-[0-9a-f]+$|arn:[a-z-]+:resource-groups:)", each.value.capacity.id))
      error_message = "Group ${each.key}: a reservation is named by its id, cr-…, or by the ARN of a resource group of reservations. https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/capacity-reservations-launch.html"
    }
    precondition {
      condition     = local.kind[each.key] != "block" || each.value.placement != "cluster"
      error_message = "Group ${each.key}: a capacity block takes no placement group; its machines are close together by themselves. https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/capacity-blocks-how.html"
    }
    precondition {
      condition     = local.kind[each.key] != "spot" || contains(local.described[each.key].supported_usages_classes, "spot")
      error_message = "Group ${each.key}: ${each.value.machine} is not sold as spot. https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_InstanceTypeInfo.html"
    }
    precondition {
      condition     = each.value.placement != "cluster" || contains(local.described[each.key].supported_placement_strategies, "cluster")
      error_message = "Group ${each.key}: ${each.value.machine} takes no cluster placement group. https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/placement-strategies.html"
    }
    precondition {
      condition     = local.cards[each.key] <= local.described[each.key].maximum_network_cards && alltrue([for i in local.interfaces[each.key] : i.card < local.described[each.key].maximum_network_cards])
      error_message = "Group ${each.key}: ${each.value.machine} has ${local.described[each.key].maximum_network_cards} network cards, not ${local.cards[each.key]}. https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/using-eni.html#network-cards"
    }
    precondition {
      condition     = length([for i in local.interfaces[each.key] : i if i.type != "interface"]) <= local.most_efas[each.key]
      error_message = "Group ${each.key}: ${each.value.machine} takes ${local.most_efas[each.key]} EFAs, not ${local.efas[each.key]}. https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa.html#efa-instance-types"
    }
    precondition {
      condition     = var.aws.groups[each.key].interfaces != null || contains([0, local.cards[each.key] - 1, local.cards[each.key]], local.efas[each.key])
      error_message = "Group ${each.key}: ${local.efas[each.key]} EFAs on ${local.cards[each.key]} network cards: give the whole map as aws.groups.${each.key}.interfaces."
    }
    precondition {
      condition     = local.interfaces[each.key][0].type != "efa-only" && local.interfaces[each.key][0].card == 0 && local.interfaces[each.key][0].device == 0
      error_message = "Group ${each.key}: the first interface is device 0 of card 0 and has an IP address. https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-acc-inst-types.html"
    }
    precondition {
      condition     = contains(local.described[each.key].supported_architectures, local.image[each.key].architecture)
      error_message = "Group ${each.key}: ${var.aws.groups[each.key].image_id} is for ${local.image[each.key].architecture}, ${each.value.machine} is ${join(", ", local.described[each.key].supported_architectures)}."
    }
    precondition {
      condition = each.value.root_gb >= max(0, [
        for d in local.image[each.key].block_device_mappings : tonumber(lookup(d.ebs, "volume_size", "0")) if d.device_name == local.image[each.key].root_device_name
      ]...)
      error_message = "Group ${each.key}: root_gb is smaller than the disk of ${var.aws.groups[each.key].image_id}."
    }
    precondition {
      condition     = contains(keys(local.subnets), local.zone[each.key])
      error_message = "Group ${each.key}: no subnet of the VPC is in ${local.zone[each.key]}."
    }
    precondition {
      condition     = length(try(local.found[local.zone[each.key]], [])) <= 1
      error_message = "Group ${each.key}: several subnets are in ${local.zone[each.key]}: name one for each zone."
    }
  }
}

resource "aws_instance" "node" {
  for_each = local.nodes

  launch_template {
    id      = aws_launch_template.group[each.value.group].id
    version = aws_launch_template.group[each.value.group].latest_version
  }

  # Not in the template: the provider would show it as changed in every plan, because it hashes what it has read once more.
  user_data_base64 = var.user_data == "" ? null : base64encode(var.user_data)

  disable_api_termination = var.aws.protect

  tags = merge(local.tags, {
    Name          = "${local.prefix}-${each.key}"
    gpuprov-group = each.value.group
    gpuprov-node  = each.key
  })

  # Machines with dozens of interfaces and bare metal take their time.
  timeouts {
    create = var.aws.create_timeout
    delete = "40m"
  }

  lifecycle {
    ignore_changes = [launch_template, user_data_base64]
  }

  # A node needs its way out at first boot, and its permissions.
  depends_on = [
    aws_route.internet,
    aws_route_table_association.nodes,
    aws_vpc_security_group_egress_rule.out,
    aws_vpc_security_group_egress_rule.self,
    aws_vpc_security_group_ingress_rule.self,
    aws_iam_role_policy.ssm,
    aws_iam_role_policy.s3,
    aws_iam_role_policy_attachment.asked,
  ]
}
