# A network of our own, unless a subnet is named. Nodes are in no network by default: nothing goes out but through what is made here.

locals {
  own_network = var.azure.network.subnet_id == null
  node_cidr   = local.own_network ? cidrsubnet(var.azure.network.cidr, 1, 0) : ""
  subnet_id   = local.own_network ? azurerm_subnet.nodes[0].id : var.azure.network.subnet_id
  nat         = local.own_network && var.azure.internet == "nat"
}

resource "azurerm_virtual_network" "own" {
  count               = local.own_network ? 1 : 0
  name                = local.prefix
  resource_group_name = local.resource_group
  location            = var.azure.location
  address_space       = [var.azure.network.cidr]
  tags                = local.tags
}

# https://learn.microsoft.com/azure/virtual-network/ip-services/default-outbound-access
resource "azurerm_subnet" "nodes" {
  count                           = local.own_network ? 1 : 0
  name                            = "nodes"
  resource_group_name             = local.resource_group
  virtual_network_name            = azurerm_virtual_network.own[0].name
  address_prefixes                = [local.node_cidr]
  default_outbound_access_enabled = false
  service_endpoints               = var.azure.files == null ? null : ["Microsoft.Storage"]
}

resource "azurerm_public_ip" "nat" {
  count               = local.nat ? 1 : 0
  name                = "${local.prefix}-nat"
  resource_group_name = local.resource_group
  location            = var.azure.location
  allocation_method   = "Static"
  sku                 = "Standard"
  tags                = local.tags
}

resource "azurerm_nat_gateway" "own" {
  count               = local.nat ? 1 : 0
  name                = local.prefix
  resource_group_name = local.resource_group
  location            = var.azure.location
  sku_name            = "Standard"
  tags                = local.tags
}

resource "azurerm_nat_gateway_public_ip_association" "own" {
  count                = local.nat ? 1 : 0
  nat_gateway_id       = azurerm_nat_gateway.own[0].id
  public_ip_address_id = azurerm_public_ip.nat[0].id
}

resource "azurerm_subnet_nat_gateway_association" "nodes" {
  count          = local.nat ? 1 : 0
  subnet_id      = azurerm_subnet.nodes[0].id
  nat_gateway_id = azurerm_nat_gateway.own[0].id
}

resource "azurerm_public_ip" "node" {
  for_each            = var.azure.internet == "public" ? local.nodes : {}
  name                = "${local.node_of}${each.key}"
  resource_group_name = local.resource_group
  location            = var.azure.location
  allocation_method   = "Static"
  sku                 = "Standard"
  tags                = merge(local.tags, { gpuprov-node = each.key })
}

resource "azurerm_network_interface" "node" {
  for_each                       = local.nodes
  name                           = "${local.node_of}${each.key}"
  resource_group_name            = local.resource_group
  location                       = var.azure.location
  accelerated_networking_enabled = var.azure.groups[each.value.group].accelerated_networking
  tags                           = merge(local.tags, { gpuprov-node = each.key })

  ip_configuration {
    name                          = "node"
    subnet_id                     = local.subnet_id
    private_ip_address_allocation = "Dynamic"
    public_ip_address_id          = var.azure.internet == "public" ? azurerm_public_ip.node[each.key].id : null
  }

  lifecycle {
    ignore_changes = [accelerated_networking_enabled] # of a running node it can't be changed; it holds from its replacement on
  }
}
