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

# What nodes may do in the account, where buckets are named: read these, or change them, and nothing else. CAM is the whole
# account's: the name has the cluster's own id in it. It holds for nodes that are made from then on.
locals {
  make_role = length(var.tencent.buckets) > 0
  role_name = "${substr(local.prefix, 0, 55)}-${substr(sha256("${local.prefix}/${lookup(var.tags, "gpuprov-id", "")}"), 0, 8)}"
}

resource "tencentcloud_cam_role" "nodes" {
  count         = local.make_role ? 1 : 0
  name          = local.role_name
  description   = join(" ", [for key, value in local.tags : "${key}=${value}" if startswith(key, "gpuprov-")])
  console_login = false
  tags          = local.tags
  document = jsonencode({
    version = "2.0"
    statement = [{
      effect    = "allow"
      action    = ["name/sts:AssumeRole"]
      principal = { service = ["cvm.qcloud.com"] }
    }]
  })
}

# A resource is bucket and keys, with the account's APPID as its uid; a condition's prefix is compared as it stands in the request, encoded.
# https://www.tencentcloud.com/document/product/436/30580, …/46206
resource "tencentcloud_cam_policy" "buckets" {
  count       = local.make_role ? 1 : 0
  name        = local.role_name
  description = tencentcloud_cam_role.nodes[0].description # after the role, by which it is found
  document = jsonencode({
    version = "2.0"
    statement = flatten([for one in var.tencent.buckets : [
      merge(
        { effect = "allow", action = ["name/cos:GetBucket"], resource = ["qcs::cos::uid/${regex("[0-9]+$", one.bucket)}:${one.bucket}/*"] },
        one.prefix == "" ? {} : { condition = { string_like = { "cos:prefix" = ["${urlencode(one.prefix)}*"] } } },
      ),
      {
        effect = "allow"
        action = concat(["name/cos:GetObject", "name/cos:HeadObject"], one.write ? [
          "name/cos:PutObject", "name/cos:DeleteObject", "name/cos:InitiateMultipartUpload", "name/cos:UploadPart",
          "name/cos:ListParts", "name/cos:CompleteMultipartUpload", "name/cos:AbortMultipartUpload",
        ] : [])
        resource = ["qcs::cos::uid/${regex("[0-9]+$", one.bucket)}:${one.bucket}/${one.prefix}*"]
      },
    ]])
  })
}

resource "tencentcloud_cam_role_policy_attachment" "buckets" {
  count     = local.make_role ? 1 : 0
  role_id   = tencentcloud_cam_role.nodes[0].id
  policy_id = tencentcloud_cam_policy.buckets[0].id
}
