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
    # VM size
    machine = string
    # how many nodes; node 0 of group train is train-0
    count = number
    # availability zone of the whole group, "1", "2" or "3"; empty: Azure chooses
    zone = optional(string, "")
    # `cluster`: close together, in a proximity placement group; groups with InfiniBand are in an availability set without it
    placement = optional(string)
    # size of the OS disk, GiB
    root_gb = optional(number, 200)
    # how the machines are bought: on-demand, spot or reservation; `fallback` is for gpuprov, `azure.groups.*.kind` says what holds now
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
  description = "OpenSSH public key of the access user: ssh-ed25519, or ssh-rsa of at least 2048 bits."
  type        = string
  validation {
    # https://learn.microsoft.com/azure/virtual-machines/linux/mac-create-ssh-keys#supported-ssh-key-formats
    condition     = can(regex("^ssh-(ed25519|rsa) ", var.ssh_public_key))
    error_message = "Azure takes ssh-ed25519 and ssh-rsa keys only."
  }
}

variable "user_data" {
  description = "What cloud-init runs at first boot, at most 48 KiB; may be empty."
  type        = string
  default     = ""
  validation {
    condition     = length(var.user_data) <= 49152 # 64 KiB in base64: https://learn.microsoft.com/azure/virtual-machines/custom-data
    error_message = "Custom data has at most 48 KiB."
  }
}

variable "tags" {
  description = "Tags for everything; `gpuprov-id`, where it is there, becomes part of every name."
  type        = map(string)
  default     = {}
  validation {
    # https://learn.microsoft.com/azure/azure-resource-manager/management/tag-resources
    condition     = length(var.tags) <= 47 && alltrue([for key in keys(var.tags) : can(regex("^[^<>%&\\\\?/]{1,512}$", key))])
    error_message = "At most 47 tags, whose names have none of <>%&\\?/."
  }
}

variable "azure" {
  description = "What only Azure needs: region, images, network, access, disks."
  type = object({
    # site of the cluster, in every name that is not within its own resource group; changing it makes everything anew
    site = optional(string, "")
    # region, such as eastus
    location = string
    # account that is made at first boot, with the public key
    admin_user = optional(string, "azureuser")
    # one entry for each of `groups`
    groups = map(object({
      # image that new nodes boot: publisher:offer:sku:version with an exact version, or the id of an image version
      image = string
      # zone of new nodes, where it is not the group's; empty: Azure chooses
      zone = optional(string)
      # how new nodes are bought, where it is not the group's kind: one of its fallbacks
      kind = optional(string)
      # whether its nodes talk over InfiniBand: they are in an availability set, and in no zone
      infiniband = optional(bool, false)
      # whether the size takes accelerated networking
      accelerated_networking = optional(bool, true)
      # nodes of the group that are not made, by name: those that could not be had
      without = optional(list(string), [])
    }))
    # resource group that exists; null: one is made, and removed with the cluster
    resource_group = optional(string)
    # id of a subnet that exists; without it a network is made from cidr
    network = optional(object({
      subnet_id = optional(string)
      cidr      = optional(string, "10.77.0.0/16")
    }), {})
    # `nat`: private addresses and a NAT gateway; `public`: nodes have public addresses; `none`: nodes reach nothing outside
    internet = optional(string, "nat")
    # networks that may reach ssh
    access = optional(object({
      allow = optional(list(string), [])
    }), {})
    # OS disk: kind of storage, a disk encryption set in place of Azure's own key, encryption of everything on the host
    disk = optional(object({
      type               = optional(string, "Premium_LRS")
      encryption_set_id  = optional(string)
      encryption_at_host = optional(bool, false)
    }), {})
    # ids of user-assigned managed identities that exist, for the nodes; empty: none
    identities = optional(list(string), [])
    # spot machines: most that one may cost, US dollars an hour (-1: never evicted for its price), and what eviction does
    spot = optional(object({
      max_price = optional(number, -1)
      eviction  = optional(string, "Delete")
    }), {})
    # an NFS file share of Azure Files, removed with the cluster: where nodes mount it, GiB, LRS or ZRS
    files = optional(object({
      path        = optional(string, "/files")
      size_gib    = optional(number, 1024)
      replication = optional(string, "LRS")
    }))
    # how long Azure may take to make a machine
    create_timeout = optional(string, "20m")
  })

  validation {
    condition     = contains(["nat", "public", "none"], var.azure.internet)
    error_message = "internet is nat, public or none."
  }
  validation {
    condition     = can(regex("^[a-z0-9]+$", var.azure.location))
    error_message = "location is a region's name, such as eastus."
  }
  validation {
    condition     = var.azure.network.subnet_id == null || can(regex("(?i)^/subscriptions/[^/]+/resourceGroups/[^/]+/providers/Microsoft.Network/virtualNetworks/[^/]+/subnets/[^/]+$", var.azure.network.subnet_id))
    error_message = "network.subnet_id is the id of a subnet: /subscriptions/…/virtualNetworks/…/subnets/…."
  }
  validation {
    condition     = var.azure.network.subnet_id != null || try(cidrnetmask(var.azure.network.cidr), "") == "255.255.0.0"
    error_message = "network.cidr is an IPv4 network of 16 bits, such as 10.77.0.0/16."
  }
  validation {
    # https://learn.microsoft.com/azure/virtual-machines/setup-infiniband: 172.16.0.0/16 is the RDMA network's
    condition     = var.azure.network.subnet_id != null || !startswith(var.azure.network.cidr, "172.16.")
    error_message = "network.cidr is not 172.16.0.0/16: Azure's InfiniBand has these addresses."
  }
  validation {
    condition     = alltrue([for network in var.azure.access.allow : can(cidrhost(network, 0)) && tonumber(split("/", network)[1]) > 0])
    error_message = "access.allow has networks such as 203.0.113.0/24; ssh is never opened to every address."
  }
  validation {
    condition     = contains(["Premium_LRS", "Premium_ZRS", "StandardSSD_LRS", "StandardSSD_ZRS", "Standard_LRS"], var.azure.disk.type)
    error_message = "disk.type is Premium_LRS, Premium_ZRS, StandardSSD_LRS, StandardSSD_ZRS or Standard_LRS."
  }
  validation {
    # https://learn.microsoft.com/azure/storage/files/understanding-billing#provisioned-v1-model
    condition     = var.azure.files == null ? true : var.azure.files.size_gib >= 100 && var.azure.files.size_gib <= 102400
    error_message = "files.size_gib is 100 to 102400."
  }
  validation {
    # https://learn.microsoft.com/azure/storage/files/files-nfs-protocol: premium shares alone, which have these two
    condition     = var.azure.files == null ? true : contains(["LRS", "ZRS"], var.azure.files.replication)
    error_message = "files.replication is LRS or ZRS."
  }
  validation {
    condition     = contains(["Delete", "Deallocate"], var.azure.spot.eviction)
    error_message = "spot.eviction is Delete or Deallocate."
  }
  validation {
    condition     = var.azure.spot.max_price == -1 || var.azure.spot.max_price > 0
    error_message = "spot.max_price is a price in US dollars an hour, or -1."
  }
  validation {
    condition = alltrue([for g in values(var.azure.groups) : anytrue([
      can(regex("^[A-Za-z0-9._-]+:[A-Za-z0-9._-]+:[A-Za-z0-9._-]+:[0-9]+\\.[0-9]+\\.[0-9]+$", g.image)),
      can(regex("(?i)^/subscriptions/.+/providers/Microsoft.Compute/(galleries/[^/]+/images/[^/]+/versions/[0-9.]+|images/[^/]+)$", g.image)),
    ])])
    error_message = "image is publisher:offer:sku:version with an exact version (`latest` moves), or the id of an image version."
  }
}
