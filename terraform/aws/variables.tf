# The comment above a key becomes its row in README.md (scripts/module_table.py).

variable "name" {
  description = "Name of the cluster: lower-case letters, digits and hyphens, at most 32."
  type        = string
  validation {
    condition     = can(regex("^[a-z]([a-z0-9-]{0,30}[a-z0-9])?$", var.name))
    error_message = "The name has lower-case letters, digits and hyphens, at most 32."
  }
}

variable "groups" {
  description = "Groups of nodes by name."
  type = map(object({
    # EC2 instance type
    machine = string
    # how many nodes; node 0 of group train is train-0
    count = number
    # availability zone of the whole group; empty: the first of `aws.zones`
    zone = optional(string, "")
    # `cluster`: close together, in a placement group
    placement = optional(string)
    # size of the root volume, GiB
    root_gb = optional(number, 200)
    # how the machines are bought: on-demand, spot, reservation or block; `fallback` is for gpuprov, `aws.groups.*.kind` says what holds now
    capacity = optional(object({
      kind     = optional(string, "on-demand")
      fallback = optional(list(string), [])
      id       = optional(string)
    }), {})
  }))
  validation {
    condition     = alltrue([for g in values(var.groups) : g.placement == null || g.placement == "cluster"])
    error_message = "placement is cluster or null."
  }
}

variable "ssh_public_key" {
  description = "OpenSSH public key of the access user."
  type        = string
}

variable "user_data" {
  description = "What cloud-init runs at first boot, at most 16 KiB; may be empty."
  type        = string
  default     = ""
  validation {
    condition     = length(var.user_data) <= 16384 # https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/user-data.html
    error_message = "User data has at most 16 KiB."
  }
}

variable "tags" {
  description = "Tags for everything, volumes and network interfaces included."
  type        = map(string)
  default     = {}
}

variable "aws" {
  description = "What only EC2 needs: images, network, access, disks, file systems."
  type = object({
    # told apart in every resource's name where one cluster has several sites
    site = optional(string, "")
    # zones that nodes may be in, first choice first; a subnet is made in each
    zones = optional(list(string), [])
    # one entry for each of `groups`
    groups = map(object({
      # id of the image that new nodes boot
      image_id = string
      # zone of new nodes, where it is not the group's (nodes that exist stay where they are)
      zone = optional(string)
      # how new nodes are bought, where it is not the group's kind: one of its fallbacks
      kind = optional(string)
      # placement group that exists, for new nodes: that of their reservation
      placement_group = optional(string)
      # nodes of the group that are not made, by name: those that could not be had
      without = optional(list(string), [])
      # network cards of the machine; null: as EC2 describes it
      network_cards = optional(number)
      # cards that get an EFA; 0: none; null: all that EC2 describes
      efa_interfaces = optional(number)
      # the whole map of interfaces in place of the one that follows from cards and EFAs
      interfaces = optional(list(object({
        card   = number
        device = number
        type   = string
      })))
    }))
    # a VPC that exists, with its subnets by id or by tag (one in each zone); without id one is made from cidr, /16
    vpc = optional(object({
      id          = optional(string)
      subnet_ids  = optional(list(string), [])
      subnet_tags = optional(map(string), {})
      cidr        = optional(string, "10.77.0.0/16")
    }), {})
    # `nat`: private subnets; `public`: nodes have public addresses; `none`: nodes reach nothing outside
    internet = optional(string, "nat")
    # a NAT gateway in each zone, not one for all
    nat_per_zone = optional(bool, false)
    # networks that nodes may call
    egress = optional(list(string), ["0.0.0.0/0"])
    # ways in: networks and security groups that may reach ssh, an EC2 Instance Connect endpoint, Session Manager
    access = optional(object({
      allow            = optional(list(string), [])
      from_groups      = optional(list(string), [])
      instance_connect = optional(bool, false)
      ssm              = optional(bool, true)
    }), {})
    # root volume: gp3, encrypted; IOPS, MiB/s, and a KMS key in place of the account's own
    root = optional(object({
      iops       = optional(number, 3000)
      throughput = optional(number, 500)
      kms_key_id = optional(string)
    }), {})
    # 1: the node alone reaches its metadata; 2: containers do too, and with it the node's role
    metadata_hop_limit = optional(number, 1)
    # most that a spot node may cost, US dollars an hour; null: the on-demand price
    spot_max_price = optional(string)
    # security groups that exist in the VPC, for the nodes besides their own
    security_groups = optional(list(string), [])
    # an instance profile that exists; null: one is made with what is asked for here and nothing else
    instance_profile = optional(string)
    # ARNs of further managed policies for the profile that is made
    policies = optional(list(string), [])
    # ARN of a permissions boundary for the role that is made
    permissions_boundary = optional(string)
    # how long EC2 may take to make an instance
    create_timeout = optional(string, "20m")
    # CloudWatch metrics every minute, paid
    monitoring = optional(bool, false)
    # no API call may terminate a node until this is false again
    protect = optional(bool, false)
    # an FSx for Lustre file system, removed with the cluster; throughput in MB/s per TiB
    fsx = optional(object({
      capacity_gib = number
      deployment   = optional(string, "PERSISTENT_2")
      throughput   = optional(number, 250)
      path         = optional(string, "/fsx")
      zone         = optional(string)
      kms_key_id   = optional(string)
    }))
    # an EFS file system, removed with the cluster, with a mount target in each zone
    efs = optional(object({
      throughput = optional(string, "elastic")
      path       = optional(string, "/efs")
      kms_key_id = optional(string)
    }))
    # buckets that exist and that nodes may read, with `write` change too
    s3 = optional(list(object({
      bucket = string
      prefix = optional(string, "")
      path   = string
      write  = optional(bool, false)
    })), [])
  })

  validation {
    condition     = contains(["nat", "public", "none"], var.aws.internet)
    error_message = "internet is nat, public or none."
  }
  validation {
    condition     = contains([1, 2], var.aws.metadata_hop_limit)
    error_message = "metadata_hop_limit is 1, or 2 where containers need the node's metadata."
  }
  validation {
    condition     = var.aws.vpc.id == null || length(var.aws.vpc.subnet_ids) + length(var.aws.vpc.subnet_tags) > 0
    error_message = "A VPC that exists needs subnet_ids or subnet_tags."
  }
  validation {
    condition     = var.aws.vpc.id != null || try(cidrnetmask(var.aws.vpc.cidr), "") == "255.255.0.0"
    error_message = "vpc.cidr is an IPv4 network of 16 bits, such as 10.77.0.0/16."
  }
  validation {
    condition     = alltrue([for network in var.aws.access.allow : can(cidrhost(network, 0)) && tonumber(split("/", network)[1]) > 0])
    error_message = "access.allow has networks such as 203.0.113.0/24; ssh is never opened to every address."
  }
  validation {
    condition     = length(var.aws.access.allow) + length(var.aws.access.from_groups) > 0 || var.aws.access.instance_connect || var.aws.access.ssm
    error_message = "Nobody could log in: name networks or groups in access, or take instance_connect or ssm."
  }
  validation {
    # https://docs.aws.amazon.com/ebs/latest/userguide/general-purpose.html: 0.25 MiB/s for each of 3,000 to 16,000 IOPS
    condition     = var.aws.root.throughput <= var.aws.root.iops / 4 && var.aws.root.throughput >= 125 && var.aws.root.throughput <= 1000 && var.aws.root.iops >= 3000 && var.aws.root.iops <= 16000
    error_message = "gp3 has 3000 to 16000 IOPS and 125 to 1000 MiB/s, at most a quarter MiB/s for each of the IOPS."
  }
  validation {
    condition     = length(var.aws.security_groups) == 0 || var.aws.vpc.id != null
    error_message = "security_groups are of a VPC that exists: name it as vpc.id."
  }
  validation {
    condition     = alltrue([for g in values(var.aws.groups) : can(regex("^ami-[0-9a-f]{8,17}$", g.image_id))])
    error_message = "image_id is an image's id, ami-…: names and aliases move."
  }
}
