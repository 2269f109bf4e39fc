output "nodes" {
  description = "Every node by name. The public address is on this machine's loopback, and ssh listens on port 22 there; empty behind a jump host."
  value = {
    for name, node in local.nodes : name => {
      id         = terraform_data.node[name].id
      group      = node.group
      zone       = node.zone
      private_ip = terraform_data.node[name].output.GPUPROV_PRIVATE_IP
      public_ip  = terraform_data.node[name].output.GPUPROV_PUBLIC_IP
      machine    = node.machine
    }
  }
}
