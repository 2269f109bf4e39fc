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
    # ECS instance type
    machine = string
    # how many nodes; node 0 of group train is train-0
    count = number
    # zone of the whole group; empty: the first of `alicloud.zones`
    zone = optional(string, "")
    # `cluster`: close together, in a deployment set of strategy LowLatency
    placement = optional(string)
    # size of the system disk, GiB
    root_gb = optional(number, 200)
    # how the machines are bought: on-demand, spot or reservation; `fallback` is for gpuprov, `alicloud.groups.*.kind` says what holds now
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
  validation {
    condition     = alltrue([for g in values(var.groups) : g.root_gb >= 20 && g.root_gb <= 2048]) # https://www.alibabacloud.com/help/en/ecs/user-guide/essds
    error_message = "root_gb is 20 to 2048: a system disk is no larger."
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
    condition     = length(var.user_data) <= 16384 # https://www.alibabacloud.com/help/en/ecs/user-guide/customize-the-initialization-configuration-for-an-instance
    error_message = "User data has at most 16 KiB."
  }
}

variable "tags" {
  description = "Tags for everything that takes some, disks included."
  type        = map(string)
  default     = {}
  validation {
    # https://www.alibabacloud.com/help/en/ecs/user-guide/limits-1: 20 for each resource; the module adds up to three of its own
    condition     = length(var.tags) <= 17 && alltrue([for k, v in var.tags : length(k) <= 64 && length(v) <= 128 && !can(regex("^(aliyun|acs:|https?://)", k)) && !can(regex("^(aliyun|acs:|https?://)", v))])
    error_message = "At most 17 tags, keys of 64 and values of 128 characters, none of which begins with aliyun, acs:, http:// or https://."
  }
}

variable "alicloud" {
  description = "What only Alibaba Cloud needs: images, network, access, disks, file systems."
  type = object({
    # told apart in every resource's name where one cluster has several sites
    site = optional(string, "")
    # zones that nodes may be in, first choice first; a vSwitch is made in each
    zones = list(string)
    # one entry for each of `groups`
    groups = map(object({
      # id of the image that new nodes boot
      image_id = string
      # zone of new nodes, where it is not the group's (nodes that exist stay where they are)
      zone = optional(string)
      # how new nodes are bought, where it is not the group's kind: one of its fallbacks
      kind = optional(string)
      # nodes of the group that are not made, by name: those that could not be had
      without = optional(list(string), [])
      # whether instance metadata answers to tokens only (`required`), or without one too (`optional`)
      metadata_tokens = optional(string, "required")
    }))
    # a VPC that exists, with one of its vSwitches for each zone; without id one is made from cidr, /16
    vpc = optional(object({
      id        = optional(string)
      vswitches = optional(map(string), {})
      cidr      = optional(string, "10.77.0.0/16")
    }), {})
    # `nat`: private addresses and a NAT gateway; `public`: an elastic IP address for each node; `none`: no way out
    internet = optional(string, "nat")
    # Mbit/s of each elastic IP address, paid by traffic
    bandwidth = optional(number, 100)
    # IPv4 networks that may reach ssh
    access = optional(object({
      allow = optional(list(string), [])
    }), {})
    # system disk: an encrypted ESSD; its performance level, and a KMS key in place of the account's own for ECS
    root = optional(object({
      performance_level = optional(string, "PL1")
      kms_key_id        = optional(string)
    }), {})
    # most that a spot node may cost an hour, in the account's currency; null: the pay-as-you-go price
    spot_price_limit = optional(number)
    # security groups that exist in the VPC, for the nodes besides their own
    security_groups = optional(list(string), [])
    # RAM role that exists, for the nodes; null: nodes may do nothing in the account but what `buckets` says
    ram_role = optional(string)
    # OSS buckets that nodes may use, by a RAM role that is made for it: name, beginning of keys, and whether they may write
    buckets = optional(list(object({
      bucket = string
      prefix = optional(string, "")
      write  = optional(bool, false)
    })), [])
    # resource group for everything that takes one
    resource_group_id = optional(string)
    # how long ECS may take to make an instance
    create_timeout = optional(string, "20m")
    # no API call may release a node until this is false again (not for spot)
    protect = optional(bool, false)
    # a NAS file system, removed with the cluster
    nas = optional(object({
      storage_type = optional(string, "Performance")
      path         = optional(string, "/nas")
      zone         = optional(string)
    }))
  })

  validation {
    condition     = var.alicloud.ram_role == null || length(var.alicloud.buckets) == 0
    error_message = "buckets are of the RAM role that is made here: leave ram_role out."
  }
  validation {
    condition     = length(var.alicloud.zones) > 0
    error_message = "zones has at least one zone."
  }
  validation {
    condition     = contains(["nat", "public", "none"], var.alicloud.internet)
    error_message = "internet is nat, public or none."
  }
  validation {
    condition     = var.alicloud.vpc.id == null || length(var.alicloud.vpc.vswitches) > 0
    error_message = "A VPC that exists needs vswitches, one for each zone."
  }
  validation {
    condition     = var.alicloud.vpc.id != null || try(cidrnetmask(var.alicloud.vpc.cidr), "") == "255.255.0.0"
    error_message = "vpc.cidr is an IPv4 network of 16 bits, such as 10.77.0.0/16."
  }
  validation {
    condition     = alltrue([for network in var.alicloud.access.allow : can(cidrnetmask(network)) && tonumber(split("/", network)[1]) > 0])
    error_message = "access.allow has IPv4 networks such as 203.0.113.0/24; ssh is never opened to every address."
  }
  validation {
    condition     = contains(["PL0", "PL1", "PL2", "PL3"], var.alicloud.root.performance_level)
    error_message = "root.performance_level is PL0, PL1, PL2 or PL3."
  }
  validation {
    # https://www.alibabacloud.com/help/en/eip/billing-overview: 200 is the most of an address that is paid by traffic
    condition     = var.alicloud.bandwidth >= 1 && var.alicloud.bandwidth <= 200
    error_message = "bandwidth is 1 to 200 Mbit/s."
  }
  validation {
    condition     = length(var.alicloud.security_groups) == 0 || var.alicloud.vpc.id != null
    error_message = "security_groups are of a VPC that exists: name it as vpc.id."
  }
  validation {
    condition     = length(var.alicloud.security_groups) <= 4 # five for each interface: https://www.alibabacloud.com/help/en/ecs/user-guide/limits-1
    error_message = "At most four security groups besides the nodes' own."
  }
  validation {
    condition     = var.alicloud.nas == null ? true : contains(["Performance", "Capacity"], var.alicloud.nas.storage_type)
    error_message = "nas.storage_type is Performance or Capacity."
  }
}
