/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tbl_geometry.h - the dtypes and codecs of a geometry, with the names that `kvtierctl spaces`
 * shows. NUMBER is what stands behind KVTIER_ or DTYPE_, and behind KVTIER_CODEC_ or CODECS_.
 *
 *	X(NUMBER, name)
 */
#pragma once

#define GEOMETRY_DTYPES(X) \
	X(BF16, "bf16")    \
	X(FP16, "fp16")    \
	X(FP32, "fp32")    \
	X(E4M3, "e4m3")    \
	X(E5M2, "e5m2")    \
	X(INT8, "int8")

#define GEOMETRY_CODECS(X)          \
	X(RAW, "raw")               \
	X(FP8, "fp8")               \
	X(FP8_NATIVE, "fp8-native") \
	X(LOSSLESS, "lossless")     \
	X(INT8, "int8")             \
	X(Q4, "q4")                 \
	X(INT8V4, "int8v4")
