package broken

var X int = "text"
