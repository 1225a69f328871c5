/* SPDX-License-Identifier: Apache-2.0 */
/* make: wrap=mbind,get_mempolicy,numa_available,numa_get_mems_allowed,numa_node_size64 */
/*
 * kvtierd_nodes.c - what makes of kvtierd one on a machine with several NUMA nodes: nothing but the
 * calls that the linker replaces (lib_nodes.h). Never installed.
 */
