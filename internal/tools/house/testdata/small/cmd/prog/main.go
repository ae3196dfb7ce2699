package main

import "example.com/small/internal/two"

// Exported is no export: nobody imports a program.
func Exported() {}

// main is long, but no line over the limit.
func main() {
	println(len(two.Shapes))
	println(1)
	println(2)
	println(3)
	println(4)
	println(5)
	println(6)
	println(7)
	println(8)
	println(9)
	println(10)
	println(11)
	println(12)
	println(13)
	println(14)
	println(15)
	println(16)
	println(17)
	println(18)
	println(19)
	println(20)
	println(21)
	println(22)
	println(23)
	println(24)
	println(25)
	println(26)
	println(27)
	println(28)
	println(29)
	println(30)
	println(31)
	println(32)
	println(33)
	println(34)
	println(35)
	println(36)
	println(37)
	println(38)
	println(39)
	println(40)
	println(41)
	println(42)
	println(43)
	println(44)
	println(45)
	println(46)
	println(47)
	println(48)
	println(49)
	println(50)
	println(51)
	println(52)
	println(53)
	println(54)
	println(55)
	println(56)
	println(57)
	println(58)
	println(59)
	println(60)
	println(61)
	println(62)
	println(63)
	println(64)
	println(65)
	println(66)
	println(67)
	println(68)
	println(69)
	println(70)
	println(71)
	println(72)
	println(73)
	println(74)
	println(75)
	println(76)
	println(77)
	println(78)
	println(79)
	println(80)
	println(81)
	println(82)
	println(83)
	println(84)
	println(85)
	println(86)
	println(87)
}

func long() {
	if literal != nil {
		println(1)
	}
	if literal != nil {
		println(2)
	}
	if literal != nil {
		println(3)
	}
	if literal != nil {
		println(4)
	}
	if literal != nil {
		println(5)
	}
	if literal != nil {
		println(6)
	}
	if literal != nil {
		println(7)
	}
	if literal != nil {
		println(8)
	}
	if literal != nil {
		println(9)
	}
	if literal != nil {
		println(10)
	}
	if literal != nil {
		println(11)
	}
	if literal != nil {
		println(12)
	}
	if literal != nil {
		println(13)
	}
	if literal != nil {
		println(14)
	}
	if literal != nil {
		println(15)
	}
	if literal != nil {
		println(16)
	}
	if literal != nil {
		println(17)
	}
	if literal != nil {
		println(18)
	}
	if literal != nil {
		println(19)
	}
	if literal != nil {
		println(20)
	}
	if literal != nil {
		println(21)
	}
	if literal != nil {
		println(22)
	}
	if literal != nil {
		println(23)
	}
	if literal != nil {
		println(24)
	}
	if literal != nil {
		println(25)
	}
	if literal != nil {
		println(26)
	}
	if literal != nil {
		println(27)
	}
	if literal != nil {
		println(28)
	}
	if literal != nil {
		println(29)
	}
	if literal != nil {
		println(30)
	}
}

var literal = func() {
	if 1 > 1 {
	}
	if 2 > 1 {
	}
	if 3 > 1 {
	}
	if 4 > 1 {
	}
	if 5 > 1 {
	}
	if 6 > 1 {
	}
	if 7 > 1 {
	}
	if 8 > 1 {
	}
	if 9 > 1 {
	}
	if 10 > 1 {
	}
	if 11 > 1 {
	}
	if 12 > 1 {
	}
	if 13 > 1 {
	}
	if 14 > 1 {
	}
	if 15 > 1 {
	}
	if 16 > 1 {
	}
	if 17 > 1 {
	}
	if 18 > 1 {
	}
	if 19 > 1 {
	}
	if 20 > 1 {
	}
	if 21 > 1 {
	}
	if 22 > 1 {
	}
	if 23 > 1 {
	}
	if 24 > 1 {
	}
	if 25 > 1 {
	}
	if 26 > 1 {
	}
	if 27 > 1 {
	}
	if 28 > 1 {
	}
	if 29 > 1 {
	}
}
