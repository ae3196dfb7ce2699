#include "textflag.h"

// func gapsAVX2(b *byte, n int, out *uint16) (found int)
//
// The same as gapsInGo: it reads 32*n+4 bytes of b, and out has place for n.
TEXT ·gapsAVX2(SB), NOSPLIT, $0-32
	MOVQ b+0(FP), SI
	MOVQ n+8(FP), CX
	MOVQ out+16(FP), DI
	XORQ R9, R9   // block
	XORQ R10, R10 // found

	MOVQ $0xfefefefefefefefe, R11
	MOVQ R11, X14
	VPBROADCASTQ X14, Y14
	MOVQ $0x3030303030303030, R11
	MOVQ R11, X15
	VPBROADCASTQ X15, Y15

loop:
	CMPQ R9, CX
	JGE  end
	VMOVDQU   (SI), Y0
	VPCMPEQB  1(SI), Y0, Y4
	VPCMPEQB  2(SI), Y0, Y1
	VPCMPEQB  3(SI), Y0, Y2
	VPCMPEQB  4(SI), Y0, Y3
	VPAND     Y1, Y4, Y5
	VPAND     Y2, Y5, Y6
	VPANDN    Y1, Y4, Y1 // not in a run of one byte: the next is not the same as well,
	VPANDN    Y2, Y5, Y2 // or the one after that,
	VPANDN    Y3, Y6, Y3 // or the third
	VPAND     Y14, Y0, Y0
	VPCMPEQB  Y15, Y0, Y0
	VPMOVMSKB Y1, R11
	VPMOVMSKB Y2, R12
	VPMOVMSKB Y3, R13
	VPMOVMSKB Y0, R8
	POPCNTL   R11, R11
	POPCNTL   R12, R12
	POPCNTL   R13, R13
	POPCNTL   R8, R8
	MOVW R9, (DI)(R10*2)
	CMPL R11, $6
	SETGE R11
	CMPL R12, $12
	SETGE R12
	CMPL R13, $18
	SETGE R13
	CMPL R8, $24
	SETGE R8
	ORL  R12, R11
	ORL  R13, R8
	ORL  R8, R11
	MOVBLZX R11, R11
	ADDQ R11, R10 // it stays, or the next one takes its place
	ADDQ $32, SI
	INCQ R9
	JMP  loop

end:
	VZEROUPPER
	MOVQ R10, found+24(FP)
	RET
