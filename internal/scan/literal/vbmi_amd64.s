#include "textflag.h"

// The tables of 128 bytes, by [group][place], are in Z8 to Z31, two for each.

// FIRST looks the bytes in Z0, those at the first place, up in a group's tables, and
// NEXT those at a further place, and joins the answers in acc.
#define FIRST(low, high, acc) \
	VMOVDQA64 Z0, acc         \
	VPERMI2B  high, low, acc

#define NEXT(bytes, low, high, acc) \
	VMOVDQA64 bytes, Z7             \
	VPERMI2B  high, low, Z7         \
	VPANDQ    Z7, acc, acc

// PUT writes the place of the lowest bit of R11 to out, at at(DI)(R10*2), and
// takes that bit away. Without a bit it writes nonsense, which counts for nothing.
#define PUT(at) \
	TZCNTQ R11, R12           \
	ADDL   R9, R12            \
	MOVW   R12, at(DI)(R10*2) \
	BLSRQ  R11, R11

// func scanVBMI(t *exactTables, b *byte, n int, out *uint16, room int) (blocks, found int)
//
// It looks at n blocks of 64 bytes, or fewer: it ends before one that, with the three
// bytes that follow, is not ASCII, and after the one with which more than room
// candidates are found, so out has place for room+64+8. It reads 64*n+3 bytes of b,
// and n is at most 1023.
TEXT ·scanVBMI(SB), NOSPLIT, $0-56
	MOVQ t+0(FP), AX
	MOVQ b+8(FP), SI
	MOVQ n+16(FP), CX
	MOVQ out+24(FP), DI
	MOVQ room+32(FP), BX
	SHLQ $6, CX
	XORQ R9, R9   // place of the block
	XORQ R10, R10 // found
	VMOVDQU64 0(AX), Z8
	VMOVDQU64 64(AX), Z9
	VMOVDQU64 128(AX), Z10
	VMOVDQU64 192(AX), Z11
	VMOVDQU64 256(AX), Z12
	VMOVDQU64 320(AX), Z13
	VMOVDQU64 384(AX), Z14
	VMOVDQU64 448(AX), Z15
	VMOVDQU64 512(AX), Z16
	VMOVDQU64 576(AX), Z17
	VMOVDQU64 640(AX), Z18
	VMOVDQU64 704(AX), Z19
	VMOVDQU64 768(AX), Z20
	VMOVDQU64 832(AX), Z21
	VMOVDQU64 896(AX), Z22
	VMOVDQU64 960(AX), Z23
	VMOVDQU64 1024(AX), Z24
	VMOVDQU64 1088(AX), Z25
	VMOVDQU64 1152(AX), Z26
	VMOVDQU64 1216(AX), Z27
	VMOVDQU64 1280(AX), Z28
	VMOVDQU64 1344(AX), Z29
	VMOVDQU64 1408(AX), Z30
	VMOVDQU64 1472(AX), Z31

loop:
	CMPQ R9, CX
	JGE  end
	CMPQ R10, BX
	JGT  end
	VMOVDQU64 (SI), Z0
	VMOVDQU64 1(SI), Z1
	VMOVDQU64 2(SI), Z2
	VMOVDQU64 3(SI), Z3
	VPORQ     Z0, Z3, Z7
	VPMOVB2M  Z7, K1
	KORTESTQ  K1, K1
	JNE       end
	FIRST(Z8, Z9, Z4)
	FIRST(Z16, Z17, Z5)
	FIRST(Z24, Z25, Z6)
	NEXT(Z1, Z10, Z11, Z4)
	NEXT(Z1, Z18, Z19, Z5)
	NEXT(Z1, Z26, Z27, Z6)
	NEXT(Z2, Z12, Z13, Z4)
	NEXT(Z2, Z20, Z21, Z5)
	NEXT(Z2, Z28, Z29, Z6)
	NEXT(Z3, Z14, Z15, Z4)
	NEXT(Z3, Z22, Z23, Z5)
	NEXT(Z3, Z30, Z31, Z6)
	VPORQ    Z4, Z5, Z4
	VPORQ    Z4, Z6, Z4
	VPTESTMB Z4, Z4, K1
	KMOVQ    K1, R11
	ADDQ     $64, SI
	POPCNTQ  R11, R13

	// As in scanAVX2.
	PUT(0)
	PUT(2)
	PUT(4)
	PUT(6)
	CMPQ R13, $4
	JGT  many

next:
	ADDQ R13, R10
	ADDQ $64, R9
	JMP  loop

many:
	LEAQ 8(DI), DX
more:
	TZCNTQ R11, R12
	ADDL   R9, R12
	MOVW   R12, (DX)(R10*2)
	ADDQ   $2, DX
	BLSRQ  R11, R11
	TESTQ  R11, R11
	JNE    more
	JMP    next

end:
	VZEROUPPER
	SHRQ $6, R9
	MOVQ R9, blocks+40(FP)
	MOVQ R10, found+48(FP)
	RET
