output "nodes" {
  description = "Every node by name. id is the machine's own, which a replacement changes; public_ip is empty where it has none; zone is empty where Azure has chosen; mounts are its file systems."
  value = {
    for name, node in azurerm_linux_virtual_machine.node : name => {
      id         = node.virtual_machine_id
      group      = local.nodes[name].group
      machine    = node.size
      zone       = node.zone == null ? "" : node.zone
      private_ip = azurerm_network_interface.node[name].private_ip_address
      public_ip  = try(azurerm_public_ip.node[name].ip_address, null)
      capacity   = node.priority == "Spot" ? "spot" : node.capacity_reservation_group_id == null ? "on-demand" : "reservation"
      mounts     = local.mounts
    }
  }
}
