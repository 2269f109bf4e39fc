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
  description = "Where and how the nodes are made on this machine."
  type = object({
    # the nodes' image
    image = string
    # OCI runtime: crun or runc
    runtime = string
    # podman's path
    podman = string
    # directory of whoever owns these nodes; containers of another workspace are never touched
    workspace = string
    # 1 to 250, one for each cluster on a machine
    network_octet = number
    # first two octets of the addresses that nodes have among themselves
    network_prefix = optional(string, "10.77")
    # what the mirror serves, mounted read-only
    mirror_dir = string
    # PyTorch for the nodes' processors, which jobs use, mounted read-only; "": none
    pytorch_dir = optional(string, "")
    # path of hardware.json for each node name
    hardware = map(string)
    # 4 to 253 for each node name; counted, interleaved by group, when left out
    numbers = optional(map(number), {})
    # access user with passwordless sudo
    user = optional(string, "ubuntu")
    # open files of a node, at most
    nofile = optional(number, 20000)
    # processes of a node, at most
    nproc = optional(number, 20000)
    # node name → what is said in place of making it
    refusals = optional(map(string), {})
    # group name → the zone that its nodes pretend to be in, where it is not the group's
    zones = optional(map(string), {})
    # node name → the image that it is made of, where that is not `image`; one that is there stays as it is
    images = optional(map(string), {})
    # login names and ports of the container that stands for the site's jump hosts; null: none, and nodes are reached by loopback addresses
    jump = optional(object({ users = list(string), ports = list(number) }))
    # nodes that are not made
    without = optional(list(string), [])
  })
  validation {
    condition     = var.sandbox.network_octet >= 1 && var.sandbox.network_octet <= 250 && floor(var.sandbox.network_octet) == var.sandbox.network_octet
    error_message = "network_octet is a whole number from 1 to 250."
  }
}
