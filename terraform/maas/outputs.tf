output "nodes" {
  description = "Every node by name; id is MAAS's system_id. There is no public address."
  value = {
    for name, node in maas_instance.node : name => {
      id         = node.id
      group      = local.nodes[name].group
      machine    = local.nodes[name].machine
      zone       = node.zone
      private_ip = local.addresses[name][0]
      public_ip  = null
    }
  }

  precondition {
    condition     = alltrue([for name, found in local.addresses : length(found) > 0])
    error_message = "A machine has no IPv4 address${var.maas.network == "" ? "" : " in ${var.maas.network}"}: look at its interfaces in MAAS."
  }
}
