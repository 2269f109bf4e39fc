# Who may talk to nodes. What no rule names is dropped: https://cloud.tencent.com/document/product/213/12452

resource "tencentcloud_security_group" "nodes" {
  name        = local.prefix
  description = "Nodes of ${var.name}"
  project_id  = var.tencent.project
  tags        = local.tags
}

# One set, in this order: the API has rules as a list, and two resources that write to it would undo each other.
resource "tencentcloud_security_group_rule_set" "nodes" {
  security_group_id = tencentcloud_security_group.nodes.id

  ingress {
    action             = "ACCEPT"
    source_security_id = tencentcloud_security_group.nodes.id
    protocol           = "ALL"
    port               = "ALL"
    description        = "Nodes among themselves"
  }

  dynamic "ingress" {
    for_each = var.tencent.access.allow
    content {
      action      = "ACCEPT"
      cidr_block  = ingress.value
      protocol    = "TCP"
      port        = "22"
      description = "ssh"
    }
  }

  egress {
    action             = "ACCEPT"
    source_security_id = tencentcloud_security_group.nodes.id
    protocol           = "ALL"
    port               = "ALL"
    description        = "Nodes among themselves"
  }

  dynamic "egress" {
    for_each = var.tencent.egress
    content {
      action      = "ACCEPT"
      cidr_block  = egress.value
      protocol    = "ALL"
      port        = "ALL"
      description = "Packages, images, data"
    }
  }
}
