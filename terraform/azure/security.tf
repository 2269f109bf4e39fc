# Who may talk to nodes: each other, and whoever access.allow names by ssh. A network security group lets everything of the whole
# virtual network in by itself (AllowVnetInBound), peered networks and those behind a gateway included: a rule before it shuts that.
# https://learn.microsoft.com/azure/virtual-network/network-security-groups-overview#default-security-rules

resource "azurerm_network_security_group" "nodes" {
  name                = local.prefix
  resource_group_name = local.resource_group
  location            = var.azure.location
  tags                = local.tags
}

resource "azurerm_network_security_rule" "ssh" {
  count                       = length(var.azure.access.allow) > 0 ? 1 : 0
  name                        = "ssh"
  resource_group_name         = local.resource_group
  network_security_group_name = azurerm_network_security_group.nodes.name
  description                 = "ssh"
  priority                    = 100
  direction                   = "Inbound"
  access                      = "Allow"
  protocol                    = "Tcp"
  source_address_prefixes     = var.azure.access.allow
  source_port_range           = "*"
  destination_address_prefix  = "*"
  destination_port_range      = "22"
}

# In a network of yours there is no telling who else has addresses of the subnet: the nodes' own are named.
resource "azurerm_network_security_rule" "nodes" {
  name                        = "nodes"
  resource_group_name         = local.resource_group
  network_security_group_name = azurerm_network_security_group.nodes.name
  description                 = "Nodes among themselves"
  priority                    = 200
  direction                   = "Inbound"
  access                      = "Allow"
  protocol                    = "*"
  source_address_prefixes     = local.own_network ? [local.node_cidr] : [for nic in azurerm_network_interface.node : nic.private_ip_address]
  source_port_range           = "*"
  destination_address_prefix  = "*"
  destination_port_range      = "*"
}

resource "azurerm_network_security_rule" "closed" {
  name                        = "closed"
  resource_group_name         = local.resource_group
  network_security_group_name = azurerm_network_security_group.nodes.name
  description                 = "Nobody else"
  priority                    = 4000
  direction                   = "Inbound"
  access                      = "Deny"
  protocol                    = "*"
  source_address_prefix       = "*"
  source_port_range           = "*"
  destination_address_prefix  = "*"
  destination_port_range      = "*"
}

# By interface, so that a subnet of yours is not changed.
resource "azurerm_network_interface_security_group_association" "node" {
  for_each                  = local.nodes
  network_interface_id      = azurerm_network_interface.node[each.key].id
  network_security_group_id = azurerm_network_security_group.nodes.id
}
