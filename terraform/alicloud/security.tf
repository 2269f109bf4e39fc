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
