#include "textflag.h"

// One place of the window: the bytes at place(SI), each half looked up in its
// table, both answers joined into dst. Y15 holds 15 in every byte.
#define PLACE(place, low, high, dst) \
	VMOVDQU place(SI), Y0       \
	VPSRLW  $4, Y0, Y1          \
	VPAND   Y15, Y0, Y0         \
	VPAND   Y15, Y1, Y1         \
	VPSHUFB Y0, low, Y0         \
	VPSHUFB Y1, high, Y1        \
	VPAND   Y0, Y1, dst

// func scanAVX2(t *teddy, b *byte, n int, out *block) (found int)
//
// For each of n blocks of 32 bytes with a candidate one entry is written to
// out, which has room for n+1. It reads 32*n+3 bytes of b.
TEXT ·scanAVX2(SB), NOSPLIT, $0-40
	MOVQ t+0(FP), AX
	MOVQ b+8(FP), SI
	MOVQ n+16(FP), CX
	MOVQ out+24(FP), DI
	XORQ R9, R9   // block
	XORQ R10, R10 // found

	VMOVDQU 0(AX), Y7
	VMOVDQU 32(AX), Y8
	VMOVDQU 64(AX), Y9
	VMOVDQU 96(AX), Y10
	VMOVDQU 128(AX), Y11
	VMOVDQU 160(AX), Y12
	VMOVDQU 192(AX), Y13
	VMOVDQU 224(AX), Y14
	MOVQ    $0x0f0f0f0f0f0f0f0f, R11
	MOVQ    R11, X15
	VPBROADCASTQ X15, Y15
	VPXOR   Y6, Y6, Y6

loop:
	CMPQ R9, CX
	JGE  end
	PLACE(0, Y7, Y8, Y2)
	PLACE(1, Y9, Y10, Y3)
	PLACE(2, Y11, Y12, Y4)
	PLACE(3, Y13, Y14, Y5)
	VPAND     Y2, Y3, Y2
	VPAND     Y4, Y5, Y4
	VPAND     Y2, Y4, Y2
	VPCMPEQB  Y6, Y2, Y2
	VPMOVMSKB Y2, R11
	ADDQ      $32, SI
	XORL      $0xffffffff, R11
	MOVL      R9, 0(DI)(R10*8)
	MOVL      R11, 4(DI)(R10*8)
	INCQ      R9

	// Whether there is one can't be predicted, so nothing branches on it: the
	// entry stays if the mask is not zero, else the next one overwrites it.
	CMPL R11, $1
	SBBQ $-1, R10
	JMP  loop

end:
	VZEROUPPER
	MOVQ R10, found+32(FP)
	RET
