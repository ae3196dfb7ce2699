#include "textflag.h"

DATA joinBytes<>+0(SB)/1, $0x20 // the bit of small letters
DATA joinBytes<>+1(SB)/1, $0x61 // a
DATA joinBytes<>+2(SB)/1, $25
DATA joinBytes<>+3(SB)/1, $0x30 // 0
DATA joinBytes<>+4(SB)/1, $9
DATA joinBytes<>+5(SB)/1, $26
DATA joinBytes<>+6(SB)/1, $10
GLOBL joinBytes<>(SB), RODATA|NOPTR, $7

// EIGHT appends those of the eight bytes at at(SI) for which the lowest bits of AX are
// set, and drops these bits.
#define EIGHT(at) \
	MOVBLZX AX, R8        \
	SHRL    $8, AX        \
	PDEPQ   R15, R8, R9   \
	MOVQ    R9, R10       \
	SHLQ    $8, R10       \
	SUBQ    R9, R10       \
	MOVQ    at(SI), R11   \
	PEXTQ   R10, R11, R11 \
	MOVQ    R11, (DI)     \
	POPCNTL R8, R8        \
	ADDQ    R8, DI

// func joinAVX2(dst, b *byte, blocks int) int
//
// It writes up to 32 bytes behind what it appends.
TEXT ·joinAVX2(SB), NOSPLIT, $0-32
	MOVQ dst+0(FP), DI
	MOVQ b+8(FP), SI
	MOVQ blocks+16(FP), CX
	MOVQ DI, DX
	MOVQ $0x0101010101010101, R15
	VPBROADCASTB joinBytes<>+0(SB), Y8
	VPBROADCASTB joinBytes<>+1(SB), Y9
	VPBROADCASTB joinBytes<>+2(SB), Y10
	VPBROADCASTB joinBytes<>+3(SB), Y11
	VPBROADCASTB joinBytes<>+4(SB), Y12
loop:
	TESTQ CX, CX
	JE    end
	VMOVDQU (SI), Y0
	VPOR    Y0, Y8, Y1
	VPSUBB  Y9, Y1, Y1
	VPMINUB Y1, Y10, Y2
	VPCMPEQB Y1, Y2, Y1
	VPSUBB  Y11, Y0, Y3
	VPMINUB Y3, Y12, Y4
	VPCMPEQB Y3, Y4, Y3
	VPOR    Y1, Y3, Y1
	VPMOVMSKB Y1, AX
	TESTL AX, AX
	JE    next
	CMPL  AX, $-1
	JNE   some
	VMOVDQU Y0, (DI)
	ADDQ  $32, DI
	JMP   next
some:
	EIGHT(0)
	EIGHT(8)
	EIGHT(16)
	EIGHT(24)
next:
	ADDQ $32, SI
	DECQ CX
	JMP  loop
end:
	VZEROUPPER
	SUBQ DX, DI
	MOVQ DI, ret+24(FP)
	RET

// func joinVBMI2(dst, b *byte, blocks int) int
//
// It writes up to 64 bytes behind what it appends.
TEXT ·joinVBMI2(SB), NOSPLIT, $0-32
	MOVQ dst+0(FP), DI
	MOVQ b+8(FP), SI
	MOVQ blocks+16(FP), CX
	MOVQ DI, DX
	VPBROADCASTB joinBytes<>+0(SB), Z8
	VPBROADCASTB joinBytes<>+1(SB), Z9
	VPBROADCASTB joinBytes<>+5(SB), Z10
	VPBROADCASTB joinBytes<>+3(SB), Z11
	VPBROADCASTB joinBytes<>+6(SB), Z12
loop:
	TESTQ CX, CX
	JE    end
	VMOVDQU8 (SI), Z0
	VPORQ    Z0, Z8, Z1
	VPSUBB   Z9, Z1, Z1
	VPCMPUB  $1, Z10, Z1, K1
	VPSUBB   Z11, Z0, Z2
	VPCMPUB  $1, Z12, Z2, K2
	KORQ     K1, K2, K1
	VPCOMPRESSB Z0, K1, Z3
	VMOVDQU8 Z3, (DI)
	KMOVQ    K1, AX
	POPCNTQ  AX, AX
	ADDQ     AX, DI
	ADDQ     $64, SI
	DECQ     CX
	JMP      loop
end:
	VZEROUPPER
	SUBQ DX, DI
	MOVQ DI, ret+24(FP)
	RET
