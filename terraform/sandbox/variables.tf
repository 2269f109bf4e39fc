variable "name" {
  description = "Name of the cluster: lower-case letters, digits and hyphens."
  type        = string
  validation {
    condition     = can(regex("^[a-z]([a-z0-9-]{0,30}[a-z0-9])?$", var.name))
    error_message = "The name has lower-case letters, digits and hyphens, at most 32."
  }
}

variable "groups" {
  description = "Groups of nodes by name: machine type as the catalogue names it, how many, and the zone they pretend to be in."
  type = map(object({
    machine = string
    count   = number
    zone    = optional(string, "")
  }))
}

variable "ssh_public_key" {
  description = "OpenSSH public key of the access user."
  type        = string
}

variable "user_data" {
  description = "What a cloud would hand to the node at first boot; a script (#!) is run, anything else is kept. May be empty."
  type        = string
  default     = ""
}

variable "tags" {
  description = "Further labels for every container."
  type        = map(string)
  default     = {}
}

variable "sandbox" {
  description = <<-EOT
    Where and how the nodes are made on this machine.
    image: the nodes' image; runtime: OCI runtime (crun, runc); podman: its path; workspace: directory of whoever
    owns these nodes, only containers with the same one are ever replaced; network_octet: 1 to 250, this cluster's own;
    network_prefix: first two octets of podman's network; mirror_dir: directory that the mirror serves;
    hardware: path of hardware.json for each node name; numbers: 4 to 253 for each node name, counted when left out;
    user: the access user; nofile, nproc: limits of a node; refusals: node name → what is said in place of making it;
    zones: group name → the zone that its nodes pretend to be in, where it is not the group's; without: nodes that are not made.
  EOT
  type = object({
    image          = string
    runtime        = string
    podman         = string
    workspace      = string
    network_octet  = number
    network_prefix = optional(string, "10.88")
    mirror_dir     = string
    hardware       = map(string)
    numbers        = optional(map(number), {})
    user           = optional(string, "ubuntu")
    nofile         = optional(number, 20000)
    nproc          = optional(number, 20000)
    refusals       = optional(map(string), {})
    zones          = optional(map(string), {})
    without        = optional(list(string), [])
  })
  validation {
    condition     = var.sandbox.network_octet >= 1 && var.sandbox.network_octet <= 250 && floor(var.sandbox.network_octet) == var.sandbox.network_octet
    error_message = "network_octet is a whole number from 1 to 250."
  }
}
