#include "textflag.h"

// FILL puts the lowest byte of value into every byte of dst.
#define FILL(value, x, dst) \
	MOVQ value, R8     \
	VMOVQ R8, x        \
	VPBROADCASTB x, dst

// INWORD sets in dst which bytes of src are above '/' or an apostrophe.
#define INWORD(src, dst, tmp) \
	VPMAXUB  Y9, src, tmp  \
	VPCMPEQB src, tmp, tmp \
	VPCMPEQB Y8, src, dst  \
	VPOR     tmp, dst, dst

// func oddAVX2(b *byte, n int) (block int, mask uint32)
//
// The same as oddInGo: it reads 32*n+2 bytes of b.
TEXT ·oddAVX2(SB), NOSPLIT, $0-28
	MOVQ b+0(FP), SI
	MOVQ n+8(FP), CX
	XORQ AX, AX
	FILL($0x27, X8, Y8)   // apostrophe
	FILL($0x30, X9, Y9)   // the first above '/'
	FILL($0x5c, X10, Y10) // backslash
	FILL($0x20, X11, Y11)
	FILL($0x75, X12, Y12) // u
	FILL($0x78, X13, Y13) // x
	FILL($0xfc, X14, Y14)
	XORL R9, R9

loop:
	CMPQ AX, CX
	JGE  end
	VMOVDQU  1(SI), Y0 // the bytes
	VPCMPEQB Y8, Y0, Y3
	VPCMPEQB Y10, Y0, Y4
	VPOR     Y3, Y4, Y5
	VPOR     Y0, Y5, Y5 // what is not ASCII has its highest bit
	VPMOVMSKB Y5, R9
	TESTL    R9, R9
	JNE      closer

next:
	ADDQ     $32, SI
	INCQ     AX
	JMP      loop

closer:
	VMOVDQU  (SI), Y1  // the bytes before
	VMOVDQU  2(SI), Y2 // those behind
	INWORD(Y1, Y5, Y6)
	VPAND    Y5, Y3, Y3
	INWORD(Y2, Y5, Y6)
	VPAND    Y5, Y3, Y3
	VPOR     Y11, Y2, Y5
	VPCMPEQB Y12, Y5, Y6
	VPCMPEQB Y13, Y5, Y5
	VPOR     Y6, Y5, Y5
	VPAND    Y14, Y2, Y2
	VPCMPEQB Y9, Y2, Y2
	VPOR     Y2, Y5, Y5
	VPAND    Y5, Y4, Y4
	VPOR     Y4, Y3, Y3
	VPOR     Y0, Y3, Y3
	VPMOVMSKB Y3, R9
	TESTL    R9, R9
	JEQ      next

end:
	VZEROUPPER
	MOVQ AX, block+16(FP)
	MOVL R9, mask+24(FP)
	RET
