#include "textflag.h"

// GRAM adds to acc whether the eight bytes at at(SI) are in the filter: its lowest
// bit counts. Both shifts by a register take the count modulo 64.
#define GRAM(at, acc) \
	MOVQ  at(SI), R8        \
	IMULQ R15, R8           \
	SHRXQ R14, R8, R9       \
	SHRQ  $26, R8           \
	MOVQ  R9, R10           \
	SHRQ  $6, R10           \
	MOVQ  (DI)(R10*8), R11  \
	SHRXQ R9, R11, R12      \
	SHRXQ R8, R11, R13      \
	ANDQ  R13, R12          \
	ORQ   R12, acc

// BEGIN loads the arguments.
#define BEGIN \
	MOVQ f+0(FP), DI                \
	MOVQ shift+8(FP), R14           \
	MOVQ b+16(FP), SI               \
	MOVQ n+24(FP), CX               \
	MOVQ $0x9E3779B97F4A7C15, R15   \
	XORQ AX, AX

// func skipGramsBMI2(f *uint64, shift uint, b *byte, n int) int
//
// The same as skipGramsInGo with a stride of nine: it reads 36*n-1 bytes of b.
TEXT ·skipGramsBMI2(SB), NOSPLIT, $0-40
	BEGIN
loop:
	CMPQ AX, CX
	JGE  end
	XORQ DX, DX
	GRAM(0, DX)
	GRAM(9, DX)
	GRAM(18, DX)
	GRAM(27, DX)
	TESTQ $1, DX
	JNE  end
	ADDQ $36, SI
	INCQ AX
	JMP  loop
end:
	MOVQ AX, ret+32(FP)
	RET

// func skipEachBMI2(f *uint64, shift uint, b *byte, n int) int
//
// The same with a stride of one: it reads 4*n+7 bytes of b.
TEXT ·skipEachBMI2(SB), NOSPLIT, $0-40
	BEGIN
loop:
	CMPQ AX, CX
	JGE  end
	XORQ DX, DX
	GRAM(0, DX)
	GRAM(1, DX)
	GRAM(2, DX)
	GRAM(3, DX)
	TESTQ $1, DX
	JNE  end
	ADDQ $4, SI
	INCQ AX
	JMP  loop
end:
	MOVQ AX, ret+32(FP)
	RET

// func skipFarBMI2(f *uint64, shift uint, b *byte, n int) int
//
// The same with a stride of 17: it reads 68*n-9 bytes of b.
TEXT ·skipFarBMI2(SB), NOSPLIT, $0-40
	BEGIN
loop:
	CMPQ AX, CX
	JGE  end
	XORQ DX, DX
	GRAM(0, DX)
	GRAM(17, DX)
	GRAM(34, DX)
	GRAM(51, DX)
	TESTQ $1, DX
	JNE  end
	ADDQ $68, SI
	INCQ AX
	JMP  loop
end:
	MOVQ AX, ret+32(FP)
	RET
