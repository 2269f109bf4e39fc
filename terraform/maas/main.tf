# Machines that a MAAS has: allocated, deployed, and given back to it. None is added to MAAS or taken out of it.

locals {
  nodes = merge([
    for name, group in var.groups : {
      for i in range(group.count) : "${name}-${i}" => { group = name, machine = group.machine }
    }
  ]...)
  prefix = var.maas.network == "" ? "" : split("/", var.maas.network)[1]
  # IPv4 alone, and of the wanted network where one is named
  addresses = {
    for name, node in maas_instance.node : name => [
      for ip in sort(tolist(node.ip_addresses)) : ip
      if can(cidrnetmask("${ip}/32")) && (
        local.prefix == "" || try(cidrhost("${ip}/${local.prefix}", 0), "") == try(cidrhost(var.maas.network, 0), "-")
      )
    ]
  }
}

resource "maas_instance" "node" {
  for_each = local.nodes

  allocate_params {
    pool = var.maas.pool == "" ? null : var.maas.pool
    zone = var.maas.zone == "" ? null : var.maas.zone
    tags = lookup(var.maas.tags, each.value.group, [])
  }

  deploy_params {
    distro_series = var.maas.series[each.value.group]
    user_data     = var.user_data
  }

  timeouts {
    create = var.maas.create_timeout
  }

  lifecycle {
    # every one of them would release the machine and deploy another: what stands stays as it was made
    ignore_changes = [allocate_params, deploy_params]
  }
}
