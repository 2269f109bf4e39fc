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
    # CVM instance type
    machine = string
    # how many nodes; node 0 of group train is train-0
    count = number
    # availability zone of the whole group; empty: the first of `tencent.zones`
    zone = optional(string, "")
    # `cluster` is refused: CVM packs machines in HPC clusters alone, which no GPU type here has
    placement = optional(string)
    # size of the system disk, GiB
    root_gb = optional(number, 200)
    # how the machines are bought: on-demand or spot; `fallback` is for gpuprov, `tencent.groups.*.kind` says what holds now
    capacity = optional(object({
      kind     = optional(string, "on-demand")
      fallback = optional(list(string), [])
      id       = optional(string)
    }), {})
  }))
  validation {
    condition     = alltrue([for g in values(var.groups) : g.placement == null])
    error_message = "Tencent Cloud has no placement that packs machines of these types; tencent.spread keeps them apart. https://cloud.tencent.com/document/product/213/15486"
  }
}

variable "ssh_public_key" {
  description = "OpenSSH public key of the access user."
  type        = string
}

variable "user_data" {
  description = "What cloud-init runs at first boot, at most 16 KiB in base64; may be empty."
  type        = string
  default     = ""
  validation {
    condition     = length(base64encode(var.user_data)) <= 16384 # RunInstances, UserData: 16 KB, in base64
    error_message = "User data has at most 16 KiB in base64."
  }
}

variable "tags" {
  description = "Tags for everything that takes tags."
  type        = map(string)
  default     = {}
}

variable "tencent" {
  description = "What only Tencent Cloud needs: images, network, access, disks, file systems."
  type = object({
    # told apart in every resource's name where one cluster has several sites
    site = optional(string, "")
    # zones that nodes may be in, first choice first; a subnet is made in each
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
    }))
    # a VPC that exists, with its subnets by zone; without id one is made from cidr, /16
    vpc = optional(object({
      id      = optional(string)
      subnets = optional(map(string), {})
      cidr    = optional(string, "10.77.0.0/16")
    }), {})
    # `nat`: private addresses and a NAT gateway; `public`: nodes have public addresses; `none`: nodes reach nothing outside
    internet = optional(string, "nat")
    # what a public address or the NAT gateway's costs by (traffic, bandwidth or package), Mbit/s outwards, and the package's id
    bandwidth = optional(object({
      charge  = optional(string, "traffic")
      mbps    = optional(number, 100)
      package = optional(string)
    }), {})
    # networks that nodes may call
    egress = optional(list(string), ["0.0.0.0/0"])
    # networks that may reach ssh
    access = optional(object({
      allow = optional(list(string), [])
    }), {})
    # a key pair that exists, skey-…; null: one is made of ssh_public_key
    key_pair = optional(string)
    # system disk: type, whether it is encrypted, and a KMS key in place of the account's own for disks
    root = optional(object({
      type    = optional(string, "CLOUD_HSSD")
      encrypt = optional(bool, true)
      kms_key = optional(string)
    }), {})
    # keeps the machines of a group apart in a placement group: host, switch or rack; null: none
    spread = optional(string)
    # most that a spot node may cost an hour, in the account's currency; null: the price that holds
    spot_max_price = optional(string)
    # security groups that exist, for the nodes besides their own
    security_groups = optional(list(string), [])
    # a CAM role that exists, for the nodes; null: none but what `buckets` takes
    role = optional(string)
    # COS buckets that nodes may use, by a CAM role that is made for it: name with the APPID, beginning of keys, and whether they may write
    buckets = optional(list(object({
      bucket = string
      prefix = optional(string, "")
      write  = optional(bool, false)
    })), [])
    # id of the project that machines are counted to; null: the default one
    project = optional(number)
    # agents that Tencent Cloud puts into public images
    agents = optional(object({
      monitor    = optional(bool, true)
      security   = optional(bool, true)
      automation = optional(bool, false)
    }), {})
    # how long Tencent Cloud may take to make an instance
    create_timeout = optional(string, "20m")
    # no API call may terminate a node until this is false again
    protect = optional(bool, false)
    # a CFS file system, removed with the cluster; type SD (general) or HP (performance)
    cfs = optional(object({
      type = optional(string, "SD")
      path = optional(string, "/cfs")
      zone = optional(string)
    }))
    # NFS file systems that exist in the network, such as CFS: server:/export and where nodes mount it
    nfs = optional(list(object({
      source = string
      path   = string
      write  = optional(bool, false)
    })), [])
  })

  validation {
    condition     = var.tencent.role == null || length(var.tencent.buckets) == 0
    error_message = "buckets are of the CAM role that is made here: leave role out."
  }
  validation {
    condition     = alltrue([for one in var.tencent.buckets : can(regex("-[0-9]+$", one.bucket))])
    error_message = "buckets.*.bucket ends with the account's APPID, such as data-1250000000."
  }
  validation {
    condition     = length(var.tencent.zones) > 0 && alltrue([for zone in var.tencent.zones : can(regex("-[0-9]+$", zone))])
    error_message = "zones has at least one zone, such as ap-guangzhou-3."
  }
  validation {
    condition     = contains(["nat", "public", "none"], var.tencent.internet)
    error_message = "internet is nat, public or none."
  }
  validation {
    condition     = var.tencent.vpc.id == null || length(var.tencent.vpc.subnets) > 0
    error_message = "A VPC that exists needs its subnets by zone: subnets = { ap-guangzhou-3 = \"subnet-…\" }."
  }
  validation {
    condition     = var.tencent.vpc.id != null || try(cidrnetmask(var.tencent.vpc.cidr), "") == "255.255.0.0"
    error_message = "vpc.cidr is an IPv4 network of 16 bits, such as 10.77.0.0/16."
  }
  validation {
    condition     = alltrue([for network in var.tencent.access.allow : can(cidrnetmask(network)) && tonumber(split("/", network)[1]) > 0])
    error_message = "access.allow has IPv4 networks such as 203.0.113.0/24; ssh is never opened to every address."
  }
  validation {
    condition     = alltrue([for network in var.tencent.egress : can(cidrnetmask(network))])
    error_message = "egress has IPv4 networks such as 0.0.0.0/0."
  }
  validation {
    condition     = contains(["traffic", "bandwidth", "package"], var.tencent.bandwidth.charge)
    error_message = "bandwidth.charge is traffic, bandwidth or package."
  }
  validation {
    # https://tencentcloud.com/document/product/213/12523: by traffic 100 in mainland China, Hong Kong and Singapore, else 200
    condition     = var.tencent.bandwidth.mbps >= 1 && var.tencent.bandwidth.mbps <= (var.tencent.bandwidth.charge == "traffic" ? 200 : 2000)
    error_message = "bandwidth.mbps is 1 to 200 by traffic, up to 2000 by bandwidth or in a package."
  }
  validation {
    condition     = (var.tencent.bandwidth.charge == "package") == (var.tencent.bandwidth.package != null)
    error_message = "bandwidth.package is the id of a bandwidth package, bwp-…, and goes with charge = \"package\" alone."
  }
  validation {
    condition     = var.tencent.spread == null || contains(["host", "switch", "rack"], coalesce(var.tencent.spread, "host"))
    error_message = "spread is host, switch or rack."
  }
  validation {
    # data source and resource of the provider know these for system disks: tencentcloud/services/cvm/extension_cvm.go
    condition     = contains(["CLOUD_BSSD", "CLOUD_HSSD", "CLOUD_PREMIUM", "CLOUD_SSD", "CLOUD_TSSD"], var.tencent.root.type)
    error_message = "root.type is CLOUD_BSSD, CLOUD_HSSD, CLOUD_PREMIUM, CLOUD_SSD or CLOUD_TSSD."
  }
  validation {
    condition     = var.tencent.root.kms_key == null || var.tencent.root.encrypt
    error_message = "root.kms_key goes with root.encrypt."
  }
  validation {
    condition     = alltrue([for g in values(var.tencent.groups) : can(regex("^img-[0-9a-z]{8}$", g.image_id))])
    error_message = "image_id is an image's id, img-…: names move."
  }
  validation {
    condition     = var.tencent.spot_max_price == null || can(tonumber(var.tencent.spot_max_price))
    error_message = "spot_max_price is a number, such as \"25.5\"."
  }
}
