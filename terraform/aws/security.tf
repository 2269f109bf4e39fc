# Who may talk to nodes, and what nodes may do. EFA needs all traffic of the group to itself, in both directions:
# https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-start.html#efa-start-security

resource "aws_security_group" "nodes" {
  name                   = local.prefix
  description            = "Nodes of ${var.name}"
  vpc_id                 = local.vpc_id
  revoke_rules_on_delete = true
  tags                   = merge(local.tags, { Name = local.prefix })

  # What was made keeps its name where cluster.yaml gets a second site later.
  lifecycle {
    ignore_changes = [name]
  }
}

resource "aws_vpc_security_group_ingress_rule" "self" {
  security_group_id            = aws_security_group.nodes.id
  referenced_security_group_id = aws_security_group.nodes.id
  ip_protocol                  = "-1"
  description                  = "Nodes among themselves, EFA included"
  tags                         = local.tags
}

resource "aws_vpc_security_group_egress_rule" "self" {
  security_group_id            = aws_security_group.nodes.id
  referenced_security_group_id = aws_security_group.nodes.id
  ip_protocol                  = "-1"
  description                  = "Nodes among themselves, EFA included"
  tags                         = local.tags
}

resource "aws_vpc_security_group_egress_rule" "out" {
  for_each          = toset(var.aws.egress)
  security_group_id = aws_security_group.nodes.id
  cidr_ipv4         = strcontains(each.key, ":") ? null : each.key
  cidr_ipv6         = strcontains(each.key, ":") ? each.key : null
  ip_protocol       = "-1"
  description       = "Packages, images, data"
  tags              = local.tags
}

resource "aws_vpc_security_group_ingress_rule" "ssh" {
  for_each          = toset(var.aws.access.allow)
  security_group_id = aws_security_group.nodes.id
  cidr_ipv4         = strcontains(each.key, ":") ? null : each.key
  cidr_ipv6         = strcontains(each.key, ":") ? each.key : null
  ip_protocol       = "tcp"
  from_port         = 22
  to_port           = 22
  description       = "ssh"
  tags              = local.tags
}

resource "aws_vpc_security_group_ingress_rule" "ssh_from_group" {
  for_each                     = toset(var.aws.access.from_groups)
  security_group_id            = aws_security_group.nodes.id
  referenced_security_group_id = each.key
  ip_protocol                  = "tcp"
  from_port                    = 22
  to_port                      = 22
  description                  = "ssh"
  tags                         = local.tags
}

# EC2 Instance Connect endpoint: ssh to private addresses through AWS's own front door, for those whom IAM lets open a tunnel.
# https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/create-ec2-instance-connect-endpoints.html
resource "aws_security_group" "connect" {
  count                  = var.aws.access.instance_connect ? 1 : 0
  name                   = "${local.prefix}-connect"
  description            = "Instance Connect endpoint of ${var.name}"
  vpc_id                 = local.vpc_id
  revoke_rules_on_delete = true
  tags                   = merge(local.tags, { Name = "${local.prefix}-connect" })

  # What was made keeps its name where cluster.yaml gets a second site later.
  lifecycle {
    ignore_changes = [name]
  }
}

resource "aws_vpc_security_group_egress_rule" "connect" {
  count                        = var.aws.access.instance_connect ? 1 : 0
  security_group_id            = aws_security_group.connect[0].id
  referenced_security_group_id = aws_security_group.nodes.id
  ip_protocol                  = "tcp"
  from_port                    = 22
  to_port                      = 22
  description                  = "ssh to nodes"
  tags                         = local.tags
}

resource "aws_vpc_security_group_ingress_rule" "connect" {
  count                        = var.aws.access.instance_connect ? 1 : 0
  security_group_id            = aws_security_group.nodes.id
  referenced_security_group_id = aws_security_group.connect[0].id
  ip_protocol                  = "tcp"
  from_port                    = 22
  to_port                      = 22
  description                  = "ssh through the Instance Connect endpoint"
  tags                         = local.tags
}

resource "aws_ec2_instance_connect_endpoint" "connect" {
  count              = var.aws.access.instance_connect ? 1 : 0
  subnet_id          = local.subnets[local.zones[0]]
  security_group_ids = [aws_security_group.connect[0].id]
  preserve_client_ip = false
  tags               = merge(local.tags, { Name = local.prefix })
}

# What nodes may do in the account: nothing but what was asked for.
locals {
  make_profile = var.aws.instance_profile == null && (var.aws.access.ssm || length(var.aws.s3) > 0 || length(var.aws.policies) > 0)
  profile      = local.make_profile ? aws_iam_instance_profile.nodes[0].name : var.aws.instance_profile
}

data "aws_partition" "here" {}

resource "aws_iam_role" "nodes" {
  count                = local.make_profile ? 1 : 0
  name_prefix          = substr("${local.prefix}-", 0, 38) # IAM is global: a cluster of the same name may be in another region
  description          = "Nodes of ${var.name}"
  permissions_boundary = var.aws.permissions_boundary
  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Action    = "sts:AssumeRole"
      Principal = { Service = "ec2.${data.aws_partition.here.dns_suffix}" }
    }]
  })
  tags = local.tags

  # What was made keeps its name where cluster.yaml gets a second site later.
  lifecycle {
    ignore_changes = [name_prefix]
  }
}

resource "aws_iam_instance_profile" "nodes" {
  count = local.make_profile ? 1 : 0
  name  = aws_iam_role.nodes[0].name
  role  = aws_iam_role.nodes[0].name
  tags  = local.tags
}

# The managed policy AmazonSSMManagedInstanceCore would let every node read every parameter of the account; this is what
# Session Manager needs: https://docs.aws.amazon.com/systems-manager/latest/userguide/getting-started-add-permissions-to-existing-profile.html
resource "aws_iam_role_policy" "ssm" {
  count = local.make_profile && var.aws.access.ssm ? 1 : 0
  name  = "session-manager"
  role  = aws_iam_role.nodes[0].id
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect = "Allow"
      Action = [
        "ssm:UpdateInstanceInformation",
        "ssmmessages:CreateControlChannel",
        "ssmmessages:CreateDataChannel",
        "ssmmessages:OpenControlChannel",
        "ssmmessages:OpenDataChannel",
      ]
      Resource = "*"
    }]
  })
}

resource "aws_iam_role_policy" "s3" {
  count = local.make_profile && length(var.aws.s3) > 0 ? 1 : 0
  name  = "buckets"
  role  = aws_iam_role.nodes[0].id
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = flatten([for mount in var.aws.s3 : [
      merge(
        { Effect = "Allow", Action = ["s3:ListBucket"], Resource = "arn:${data.aws_partition.here.partition}:s3:::${mount.bucket}" },
        mount.prefix == "" ? {} : { Condition = { StringLike = { "s3:prefix" = ["${mount.prefix}*"] } } },
      ),
      {
        Effect   = "Allow"
        Action   = concat(["s3:GetObject"], mount.write ? ["s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"] : [])
        Resource = "arn:${data.aws_partition.here.partition}:s3:::${mount.bucket}/${mount.prefix}*"
      },
    ]])
  })
}

resource "aws_iam_role_policy_attachment" "asked" {
  for_each   = local.make_profile ? toset(var.aws.policies) : toset([])
  role       = aws_iam_role.nodes[0].name
  policy_arn = each.key
}
