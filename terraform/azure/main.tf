# Nodes: one virtual machine for each node, with an interface of its own. A node keeps the size, image, zone and kind that it was
# made with until it is replaced.

locals {
  # gpuprov-id tells this cluster from every other one of its name: in it nothing of somebody else's has one of our names.
  id   = substr(lookup(var.tags, "gpuprov-id", ""), 0, 8)
  full = join("-", compact(["gpuprov", var.name, var.azure.site, local.id]))
  own  = var.azure.resource_group == null
  # A virtual network's name has at most 64 characters; others 80, of which a group's name and a zone may take 35.
  # https://learn.microsoft.com/azure/azure-resource-manager/management/resource-name-rules
  prefix  = local.own ? "gpuprov" : length(local.full) <= 45 ? local.full : "${substr(local.full, 0, 36)}-${substr(sha256(local.full), 0, 8)}"
  node_of = local.own ? "" : join("-", concat(compact(["gpuprov", coalesce(local.id, var.name)]), [""]))
  tags    = merge(var.tags, { gpuprov-cluster = var.name })

  resource_group = local.own ? azurerm_resource_group.own[0].name : var.azure.resource_group

  kind = { for g, group in var.groups : g => coalesce(var.azure.groups[g].kind, group.capacity.kind) }
  # An availability set is in no zone: https://learn.microsoft.com/azure/virtual-machine-scale-sets/virtual-machine-scale-sets-orchestration-modes
  zone = { for g, group in var.groups : g => (
    var.azure.groups[g].infiniband ? "" : var.azure.groups[g].zone != null ? var.azure.groups[g].zone : group.zone
  ) }

  nodes = merge([
    for g, group in var.groups : {
      for i in range(group.count) : "${g}-${i}" => { group = g } if !contains(var.azure.groups[g].without, "${g}-${i}")
    }
  ]...)

  # Spot machines can't be in an availability set (same page), so that one alone may have InfiniBand.
  sets = { for g, group in var.azure.groups : g => group if group.infiniband && local.kind[g] != "spot" }
  near = merge([
    for g, group in var.groups : { "${g}/${local.zone[g]}" = local.zone[g] } if group.placement == "cluster" && !var.azure.groups[g].infiniband
  ]...)
}

resource "azurerm_resource_group" "own" {
  count    = local.own ? 1 : 0
  name     = local.full
  location = var.azure.location
  tags     = local.tags
}

# Machines talk over InfiniBand where they have the same partition key: those of one availability set, or of one scale set with
# Uniform orchestration, whose machines can't be replaced one by one. Flexible scale sets have no InfiniBand.
# https://learn.microsoft.com/azure/virtual-machines/setup-infiniband#cluster-configuration-options,
# https://learn.microsoft.com/azure/virtual-machine-scale-sets/virtual-machine-scale-sets-orchestration-modes#networking;
# one domain of each kind: github.com/ComputeCanada/magic_castle/issues/128
resource "azurerm_availability_set" "group" {
  for_each                     = local.sets
  name                         = "${local.prefix}-${each.key}"
  resource_group_name          = local.resource_group
  location                     = var.azure.location
  platform_fault_domain_count  = 1
  platform_update_domain_count = 1
  managed                      = true
  tags                         = merge(local.tags, { gpuprov-group = each.key })
}

# It takes the place of its first machine, so every zone that a group is in has its own. They cost nothing.
resource "azurerm_proximity_placement_group" "group" {
  for_each            = local.near
  name                = join("-", compact([local.prefix, replace(each.key, "/", "-")]))
  resource_group_name = local.resource_group
  location            = var.azure.location
  tags                = merge(local.tags, { gpuprov-group = split("/", each.key)[0] })
}

resource "azurerm_linux_virtual_machine" "node" {
  for_each = local.nodes

  name                = "${local.node_of}${each.key}"
  computer_name       = each.key
  resource_group_name = local.resource_group
  location            = var.azure.location
  size                = var.groups[each.value.group].machine
  zone                = local.zone[each.value.group] == "" ? null : local.zone[each.value.group]

  network_interface_ids           = [azurerm_network_interface.node[each.key].id]
  admin_username                  = var.azure.admin_user
  disable_password_authentication = true
  custom_data                     = var.user_data == "" ? null : base64encode(var.user_data)

  availability_set_id           = contains(keys(local.sets), each.value.group) ? azurerm_availability_set.group[each.value.group].id : null
  proximity_placement_group_id  = try(azurerm_proximity_placement_group.group["${each.value.group}/${local.zone[each.value.group]}"].id, null)
  capacity_reservation_group_id = local.kind[each.value.group] == "reservation" ? var.groups[each.value.group].capacity.id : null

  priority        = local.kind[each.value.group] == "spot" ? "Spot" : "Regular"
  eviction_policy = local.kind[each.value.group] == "spot" ? var.azure.spot.eviction : null
  max_bid_price   = local.kind[each.value.group] == "spot" ? var.azure.spot.max_price : null

  source_image_id            = startswith(var.azure.groups[each.value.group].image, "/") ? var.azure.groups[each.value.group].image : null
  encryption_at_host_enabled = var.azure.disk.encryption_at_host

  admin_ssh_key {
    username   = var.azure.admin_user
    public_key = var.ssh_public_key
  }

  dynamic "source_image_reference" {
    for_each = startswith(var.azure.groups[each.value.group].image, "/") ? [] : [split(":", var.azure.groups[each.value.group].image)]
    content {
      publisher = source_image_reference.value[0]
      offer     = source_image_reference.value[1]
      sku       = source_image_reference.value[2]
      version   = source_image_reference.value[3]
    }
  }

  # The OS disk alone: local NVMe disks show up by themselves and are the role scratch's.
  os_disk {
    name                   = "${local.node_of}${each.key}-os"
    caching                = "ReadWrite"
    storage_account_type   = var.azure.disk.type
    disk_size_gb           = var.groups[each.value.group].root_gb
    disk_encryption_set_id = var.azure.disk.encryption_set_id
  }

  dynamic "identity" {
    for_each = length(var.azure.identities) > 0 ? [1] : []
    content {
      type         = "UserAssigned"
      identity_ids = var.azure.identities
    }
  }

  # Console output, kept in Azure's own storage.
  boot_diagnostics {}

  tags = merge(local.tags, { gpuprov-group = each.value.group, gpuprov-node = each.key })

  timeouts {
    create = var.azure.create_timeout
    delete = "40m"
  }

  lifecycle {
    ignore_changes = [
      admin_ssh_key, admin_username, availability_set_id, capacity_reservation_group_id, custom_data,
      encryption_at_host_enabled, eviction_policy, identity, max_bid_price, os_disk, priority, proximity_placement_group_id, size,
      source_image_id, source_image_reference, zone,
    ]
    precondition {
      condition     = contains(["on-demand", "spot", "reservation"], local.kind[each.value.group])
      error_message = "Group ${each.value.group}: kind is on-demand, spot or reservation."
    }
    precondition {
      condition     = contains(["", "1", "2", "3"], local.zone[each.value.group])
      error_message = "Group ${each.value.group}: a zone is 1, 2 or 3."
    }
    precondition {
      condition     = local.kind[each.value.group] != "reservation" || can(regex("(?i)^/subscriptions/.+/capacityReservationGroups/[^/]+$", var.groups[each.value.group].capacity.id))
      error_message = "Group ${each.value.group}: capacity.id is the id of a capacity reservation group. https://learn.microsoft.com/azure/virtual-machines/capacity-reservation-overview"
    }
    precondition {
      condition     = local.kind[each.value.group] != "reservation" || !var.azure.groups[each.value.group].infiniband && var.groups[each.value.group].placement == null
      error_message = "Group ${each.value.group}: reserved machines can be in no availability set and in no proximity placement group. https://learn.microsoft.com/azure/virtual-machines/capacity-reservation-overview#limitations-and-restrictions"
    }
    precondition {
      condition     = !var.azure.groups[each.value.group].infiniband || local.kind[each.value.group] != "spot" || var.groups[each.value.group].count == 1
      error_message = "Group ${each.value.group}: spot machines can't be in one availability set, so that their InfiniBand would not connect them. https://learn.microsoft.com/azure/virtual-machine-scale-sets/virtual-machine-scale-sets-orchestration-modes"
    }
    precondition {
      # https://learn.microsoft.com/azure/virtual-machines/setup-infiniband#cluster-configuration-options
      condition     = !var.azure.groups[each.value.group].infiniband || var.groups[each.value.group].count <= 200
      error_message = "Group ${each.value.group}: an availability set has at most 200 machines."
    }
  }

  # A node needs its way out at first boot, and its firewall before anybody can call it.
  depends_on = [
    azurerm_network_interface_security_group_association.node,
    azurerm_network_security_rule.ssh,
    azurerm_network_security_rule.nodes,
    azurerm_network_security_rule.closed,
    azurerm_subnet_nat_gateway_association.nodes,
    azurerm_nat_gateway_public_ip_association.own,
  ]
}
