/* SPDX-License-Identifier: Apache-2.0 */
/* make: wrap=codec_kernels,config_device_depth,config_spin_us */
/*
 * kvtierd_tuned.c - a kvtierd with values that no operator sets: the linker replaces three calls
 * (lib_tuned.c), and nothing else is needed. Never installed.
 */
