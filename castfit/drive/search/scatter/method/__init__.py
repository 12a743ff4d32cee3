"""Scatter search over the unit cube, independent of models: small functions of arrays and members.

    members     points with their values
    diversify   new points where few have been (Eqs. 18-22)
    refset      the elite: quality, then distance (Eqs. 23-25); what enters and what it replaces (Eqs. 27-30); new
                search directions once it is exhausted (Eqs. 31-33)
    combine     children of pairs (Eq. 26), and further points in the same direction if a child beats its parent
    choice      selection of the start of a local search: balance, merit filter, distance filter
    search      the loop

Equation numbers refer to Rodriguez-Fernandez, Egea and Banga (2006), BMC Bioinformatics 7, 483 (SSm).  "eSS" is the
enhanced version of Egea, Balsa-Canto, García and Banga (2009), Ind. Eng. Chem. Res. 48, 4388, and Egea, Martí and
Banga (2010), Comput. Oper. Res. 37, 315.

Notation
--------
n          number of unknowns; all points lie in [0, 1]^n, so that distances compare all unknowns by their bounds
b          size of the reference set R, kept sorted: R[0] is the best member
m          number of diverse points
p          number of subranges of the frequency memory
x', x''    the better and the worse of two members that are combined
"""
