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

	MOVQ $0xeeeeeeeeeeeeeeee, R11
	MOVQ R11, X14
	VPBROADCASTQ X14, Y14
	MOVQ $0x2020202020202020, R11
	MOVQ R11, X15
	VPBROADCASTQ X15, Y15

loop:
	CMPQ R9, CX
	JGE  end
	VMOVDQU   (SI), Y0
	VPCMPEQB  2(SI), Y0, Y1
	VPCMPEQB  3(SI), Y0, Y2
	VPCMPEQB  4(SI), Y0, Y3
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
	CMPL R11, $7
	JGE  found
	CMPL R12, $12
	JGE  found
	CMPL R13, $18
	JGE  found
	CMPL R8, $24
	JGE  found

next:
	ADDQ $32, SI
	INCQ R9
	JMP  loop

found:
	ADDL R11, R12
	CMPL R12, $64
	JE   next // all the same
	MOVW R9, (DI)(R10*2)
	INCQ R10
	JMP  next

end:
	VZEROUPPER
	MOVQ R10, found+24(FP)
	RET
