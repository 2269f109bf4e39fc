# Who may talk to nodes. A group of type `normal` lets its members reach each other (inner_access_policy) and everything
# outside, and lets nothing in that no rule allows.
# https://www.alibabacloud.com/help/en/ecs/user-guide/overview-44

resource "alicloud_security_group" "nodes" {
  security_group_name = local.prefix
  description         = "Nodes of ${var.name}"
  vpc_id              = local.vpc_id
  security_group_type = "normal"
  inner_access_policy = "Accept"
  resource_group_id   = var.alicloud.resource_group_id
  tags                = local.tags

  # What a group asks for is looked at here, once for all of its nodes.
  lifecycle {
    precondition {
      condition     = alltrue([for kind in values(local.kind) : contains(["on-demand", "spot", "reservation"], kind)])
      error_message = "kind is on-demand, spot or reservation."
    }
    precondition {
      condition = alltrue([
        for g, group in var.groups : (local.kind[g] == "reservation") == (group.capacity.id != null) || var.alicloud.groups[g].kind != null
      ])
      error_message = "A reservation, and nothing else, has an id: that of its private pool, eap-… or crp-…. https://www.alibabacloud.com/help/en/ecs/user-guide/overview-of-immediate-capacity-reservation"
    }
    precondition {
      condition     = length(setsubtract(toset(values(local.zone)), keys(local.vswitches))) == 0
      error_message = "No vSwitch of the VPC is named for ${join(", ", setsubtract(toset(values(local.zone)), keys(local.vswitches)))}."
    }
    precondition {
      # https://www.alibabacloud.com/help/en/ecs/user-guide/essds
      condition     = alltrue([for group in values(var.groups) : group.root_gb >= lookup({ PL2 = 461, PL3 = 1261 }, var.alicloud.root.performance_level, 20)])
      error_message = "A system disk of PL2 has at least 461 GiB, one of PL3 1261."
    }
    precondition {
      condition     = !var.alicloud.protect || !contains(values(local.kind), "spot")
      error_message = "A spot node can't be protected against its release."
    }
  }
}

resource "alicloud_security_group_rule" "ssh" {
  for_each          = toset(var.alicloud.access.allow)
  security_group_id = alicloud_security_group.nodes.id
  type              = "ingress"
  ip_protocol       = "tcp"
  nic_type          = "intranet"
  policy            = "accept"
  port_range        = "22/22"
  priority          = 1
  cidr_ip           = each.key
  description       = "ssh"
}

# What nodes may do in the account, where buckets are named: read these, or change them, and nothing else. RAM is the whole
# account's: the name has the cluster's own id in it.
locals {
  make_role = length(var.alicloud.buckets) > 0
  role_name = "${substr(local.prefix, 0, 55)}-${substr(sha256("${local.prefix}/${lookup(var.tags, "gpuprov-id", "")}"), 0, 8)}"
}

resource "alicloud_ram_role" "nodes" {
  count       = local.make_role ? 1 : 0
  role_name   = local.role_name
  description = join(" ", [for key, value in local.tags : "${key}=${value}" if startswith(key, "gpuprov-")])
  force       = true # with what is attached to it
  assume_role_policy_document = jsonencode({
    Version = "1"
    Statement = [{
      Effect    = "Allow"
      Action    = "sts:AssumeRole"
      Principal = { Service = ["ecs.aliyuncs.com"] }
    }]
  })
}

# https://www.alibabacloud.com/help/en/oss/user-guide/authorization-syntax-and-elements
resource "alicloud_ram_policy" "buckets" {
  count       = local.make_role ? 1 : 0
  policy_name = local.role_name
  description = alicloud_ram_role.nodes[0].description
  force       = true
  policy_document = jsonencode({
    Version = "1"
    Statement = flatten([for one in var.alicloud.buckets : [
      merge(
        { Effect = "Allow", Action = ["oss:ListObjects"], Resource = ["acs:oss:*:*:${one.bucket}"] },
        one.prefix == "" ? {} : { Condition = { StringLike = { "oss:Prefix" = ["${one.prefix}*"] } } },
      ),
      {
        Effect   = "Allow"
        Action   = concat(["oss:GetObject"], one.write ? ["oss:PutObject", "oss:DeleteObject", "oss:AbortMultipartUpload"] : [])
        Resource = ["acs:oss:*:*:${one.bucket}/${one.prefix}*"]
      },
    ]])
  })
}

resource "alicloud_ram_role_policy_attachment" "buckets" {
  count       = local.make_role ? 1 : 0
  role_name   = alicloud_ram_role.nodes[0].role_name
  policy_name = alicloud_ram_policy.buckets[0].policy_name
  policy_type = "Custom"
}
