/* SPDX-License-Identifier: Apache-2.0 */
/* make: wrap=mbind,get_mempolicy,numa_available,numa_get_mems_allowed,numa_node_size64 */
/*
 * kvtierd_nodes.c - a kvtierd on a machine with several NUMA nodes: the linker replaces some calls
 * (lib_nodes.h), and nothing else is needed. Never installed.
 */
