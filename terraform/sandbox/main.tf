locals {
  group_names = sort(keys(var.groups))

  # Counted per group, interleaved: a group that grows moves nobody. `numbers` from outside knows better where groups come and go.
  members = merge([
    for g, name in local.group_names : {
      for i in range(var.groups[name].count) : "${name}-${i}" => {
        group   = name
        machine = var.groups[name].machine
        zone    = lookup(var.sandbox.zones, name, var.groups[name].zone)
        number  = 4 + i * length(local.group_names) + g
      } if !contains(var.sandbox.without, "${name}-${i}")
    }
  ]...)

  mirror_ip = "${var.sandbox.network_prefix}.${var.sandbox.network_octet}.2"
  jump_ip   = "${var.sandbox.network_prefix}.${var.sandbox.network_octet}.3"
  has_jump  = var.sandbox.jump != null

  nodes = {
    for name, member in local.members : name => merge(member, {
      number = lookup(var.sandbox.numbers, name, member.number)
    })
  }

  # One label a line for podman's --label-file; a key that podman refuses is left out, a line end in a value becomes a space.
  labels = join("\n", [
    for key, value in var.tags : "gpuprov.tag.${key}=${replace(value, "/[\r\n]+/", " ")}" if can(regex("^[A-Za-z0-9_.-]+$", key))
  ])

  # What node.sh needs, for making and for removing: a destroy-time provisioner sees nothing but its own input.
  common = {
    GPUPROV_PODMAN    = var.sandbox.podman
    GPUPROV_RUNTIME   = var.sandbox.runtime
    GPUPROV_CLUSTER   = var.name
    GPUPROV_WORKSPACE = var.sandbox.workspace
    GPUPROV_OCTET     = tostring(var.sandbox.network_octet)
    GPUPROV_IMAGE     = var.sandbox.image
  }
}

resource "terraform_data" "mirror" {
  input = merge(local.common, {
    GPUPROV_ROLE       = "mirror"
    GPUPROV_NODE       = ""
    GPUPROV_NAME       = "gpuprov-${var.name}.mirror.${var.sandbox.network_octet}"
    GPUPROV_PRIVATE_IP = local.mirror_ip
    GPUPROV_MIRROR_DIR = var.sandbox.mirror_dir
    GPUPROV_LABELS     = local.labels
  })
  triggers_replace = [var.sandbox.image, var.sandbox.mirror_dir, local.mirror_ip]

  provisioner "local-exec" {
    command     = "sh \"$GPUPROV_MODULE/node.sh\" create"
    environment = merge(self.input, { GPUPROV_MODULE = path.module })
  }

  provisioner "local-exec" {
    when        = destroy
    command     = "sh \"$GPUPROV_MODULE/node.sh\" destroy"
    environment = merge(self.input, { GPUPROV_MODULE = path.module })
  }
}

resource "terraform_data" "jump" {
  count = local.has_jump ? 1 : 0

  input = merge(local.common, {
    GPUPROV_ROLE       = "jump"
    GPUPROV_NODE       = ""
    GPUPROV_NAME       = "gpuprov-${var.name}.jump.${var.sandbox.network_octet}"
    GPUPROV_PRIVATE_IP = local.jump_ip
    GPUPROV_PUBLIC_IP  = "127.77.${var.sandbox.network_octet}.3"
    GPUPROV_PORTS      = join(" ", var.sandbox.jump.ports)
    GPUPROV_JUMP       = jsonencode(var.sandbox.jump)
    GPUPROV_SSH_KEY    = var.ssh_public_key
    GPUPROV_LABELS     = local.labels
  })
  triggers_replace = [
    var.sandbox.image,
    local.jump_ip,
    sha256(join("\u0000", [var.ssh_public_key, jsonencode(var.sandbox.jump)])),
  ]

  provisioner "local-exec" {
    command     = "sh \"$GPUPROV_MODULE/node.sh\" create"
    environment = merge(self.input, { GPUPROV_MODULE = path.module })
  }

  provisioner "local-exec" {
    when        = destroy
    command     = "sh \"$GPUPROV_MODULE/node.sh\" destroy"
    environment = merge(self.input, { GPUPROV_MODULE = path.module })
  }
}

resource "terraform_data" "node" {
  for_each = local.nodes

  input = merge(local.common, {
    GPUPROV_ROLE       = "node"
    GPUPROV_NODE       = each.key
    GPUPROV_NAME       = "gpuprov-${var.name}-${each.key}.${var.sandbox.network_octet}"
    GPUPROV_PRIVATE_IP = "${var.sandbox.network_prefix}.${var.sandbox.network_octet}.${each.value.number}"
    GPUPROV_PUBLIC_IP  = local.has_jump ? "" : "127.77.${var.sandbox.network_octet}.${each.value.number}"
    GPUPROV_MIRROR_IP  = local.mirror_ip
    GPUPROV_HARDWARE   = var.sandbox.hardware[each.key]
    GPUPROV_USER       = var.sandbox.user
    GPUPROV_SSH_KEY    = var.ssh_public_key
    GPUPROV_USER_DATA  = var.user_data
    GPUPROV_PYTORCH    = var.sandbox.pytorch_dir
    GPUPROV_NOFILE     = tostring(var.sandbox.nofile)
    GPUPROV_NPROC      = tostring(var.sandbox.nproc)
    GPUPROV_LABELS     = local.labels
  })
  triggers_replace = {
    image   = var.sandbox.image
    machine = filesha256(var.sandbox.hardware[each.key])
    number  = each.value.number
    mirror  = local.mirror_ip
    jump    = local.has_jump
    ssh_key = sha256(join("\u0000", [var.ssh_public_key, var.user_data, var.sandbox.user]))
  }

  lifecycle {
    precondition {
      condition     = each.value.number >= 4 && each.value.number <= 253
      error_message = "Node ${each.key} would be number ${each.value.number}: a sandbox cluster has room for numbers 4 to 253. Use smaller counts."
    }
  }

  provisioner "local-exec" {
    command = "sh \"$GPUPROV_MODULE/node.sh\" create"
    environment = merge(self.input, {
      GPUPROV_MODULE  = path.module
      GPUPROV_REFUSAL = lookup(var.sandbox.refusals, each.key, "")
      GPUPROV_IMAGE   = lookup(var.sandbox.images, each.key, var.sandbox.image)
    })
  }

  provisioner "local-exec" {
    when        = destroy
    command     = "sh \"$GPUPROV_MODULE/node.sh\" destroy"
    environment = merge(self.input, { GPUPROV_MODULE = path.module })
  }
}
