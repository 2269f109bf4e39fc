output "nodes" {
  description = "Every node by name. public_ip is empty where it has none; capacity is how it was bought; mounts are its file systems."
  value = {
    for name, node in alicloud_instance.node : name => {
      id         = node.id
      group      = local.nodes[name].group
      zone       = node.availability_zone
      private_ip = node.private_ip
      public_ip  = try(alicloud_eip_address.node[name].ip_address, null)
      machine    = node.instance_type
      capacity   = node.spot_strategy == "NoSpot" ? (node.private_pool_options_id == null || node.private_pool_options_id == "" ? "on-demand" : "reservation") : "spot"
      mounts     = local.mounts
    }
  }
}
