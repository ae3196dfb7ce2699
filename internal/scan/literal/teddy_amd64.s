#include "textflag.h"

// Tables are laid out as [group][place][low, high], 32 bytes each: 64 for a
// place, 256 for a group. Y15 holds 15 in every byte.

// HALVES splits the bytes at place(SI) into Y0, the low halves, and Y1, the high.
#define HALVES(place) \
	VMOVDQU place(SI), Y0 \
	VPSRLW  $4, Y0, Y1    \
	VPAND   Y15, Y0, Y0   \
	VPAND   Y15, Y1, Y1

// LOOK looks both halves up in the tables at off(AX) and joins the answers in dst.
#define LOOK(off, dst, tmp) \
	VMOVDQU off(AX), dst       \
	VMOVDQU (off+32)(AX), tmp  \
	VPSHUFB Y0, dst, dst       \
	VPSHUFB Y1, tmp, tmp       \
	VPAND   tmp, dst, dst

// MORE is LOOK for a further place of a group, of which acc holds the earlier.
#define MORE(off, acc, tmp1, tmp2) \
	LOOK(off, tmp1, tmp2) \
	VPAND tmp1, acc, acc

// PUT writes the place of the lowest bit of R11 to out, at at(DI)(R10*2), and
// takes that bit away. Without a bit it writes nonsense, which counts for nothing.
#define PUT(at) \
	TZCNTL R11, R12             \
	ADDL   R9, R12              \
	MOVW   R12, at(DI)(R10*2)   \
	BLSRL  R11, R11

// func scanAVX2(t *tables, b *byte, n int, out *uint16, room int) (blocks, found int)
//
// It looks at n blocks of 32 bytes, or fewer: it ends after the one with which
// more than room candidates are found, so out has place for room+32+8. It
// reads 32*n+3 bytes of b, and n is at most 2047.
TEXT ·scanAVX2(SB), NOSPLIT, $0-56
	MOVQ t+0(FP), AX
	MOVQ b+8(FP), SI
	MOVQ n+16(FP), CX
	MOVQ out+24(FP), DI
	MOVQ room+32(FP), BX
	SHLQ $5, CX
	XORQ R9, R9   // place of the block
	XORQ R10, R10 // found

	MOVQ $0x0f0f0f0f0f0f0f0f, R11
	MOVQ R11, X15
	VPBROADCASTQ X15, Y15
	VPXOR Y14, Y14, Y14

loop:
	CMPQ R9, CX
	JGE  end
	CMPQ R10, BX
	JGT  end
	HALVES(0)
	LOOK(0, Y4, Y2)
	LOOK(256, Y5, Y3)
	LOOK(512, Y6, Y7)
	HALVES(1)
	MORE(64, Y4, Y2, Y3)
	MORE(320, Y5, Y7, Y8)
	MORE(576, Y6, Y9, Y10)
	HALVES(2)
	MORE(128, Y4, Y2, Y3)
	MORE(384, Y5, Y7, Y8)
	MORE(640, Y6, Y9, Y10)
	HALVES(3)
	MORE(192, Y4, Y2, Y3)
	MORE(448, Y5, Y7, Y8)
	MORE(704, Y6, Y9, Y10)
	VPOR      Y4, Y5, Y4
	VPOR      Y4, Y6, Y4
	VPCMPEQB  Y14, Y4, Y4
	VPMOVMSKB Y4, R11
	ADDQ      $32, SI
	XORL      $0xffffffff, R11
	POPCNTL   R11, R13

	// How many there are can't be predicted, so up to four are written always,
	// and only those that are there counted.
	PUT(0)
	PUT(2)
	PUT(4)
	PUT(6)
	CMPL R13, $4
	JGT  many

next:
	ADDQ R13, R10
	ADDQ $32, R9
	JMP  loop

many:
	LEAQ 8(DI), DX
more:
	TZCNTL R11, R12
	ADDL   R9, R12
	MOVW   R12, (DX)(R10*2)
	ADDQ   $2, DX
	BLSRL  R11, R11
	TESTL  R11, R11
	JNE    more
	JMP    next

end:
	VZEROUPPER
	SHRQ $5, R9
	MOVQ R9, blocks+40(FP)
	MOVQ R10, found+48(FP)
	RET
