output "nodes" {
  description = "Every node by name. public_ip is empty where it has none; capacity is how it was bought; mounts are its file systems."
  value = {
    for name, node in tencentcloud_instance.node : name => {
      id         = node.id
      group      = local.nodes[name].group
      zone       = node.availability_zone
      private_ip = node.private_ip
      public_ip  = node.public_ip
      machine    = node.instance_type
      capacity   = node.instance_charge_type == "SPOTPAID" ? "spot" : "on-demand"
      mounts     = local.mounts
    }
  }
}
